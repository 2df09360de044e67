// Writes protobuf fields to the end of a string. Nested messages are written behind their size, which the caller counts
// first: so a reply takes one allocation and one copy.
#ifndef TFCTR_CORE_WIRE_PROTOBUF_WRITER_H_
#define TFCTR_CORE_WIRE_PROTOBUF_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace tfctr {

inline size_t VarintSize(uint64_t value) {
  return static_cast<size_t>((63 - __builtin_clzll(value | 1)) * 9 + 73) / 64;
}

inline void PutVarint(uint64_t value, std::string* out) {
  char bytes[10];
  size_t size = 0;
  while (value >= 0x80) {
    bytes[size++] = static_cast<char>(value | 0x80);
    value >>= 7;
  }
  bytes[size++] = static_cast<char>(value);
  out->append(bytes, size);
}

// Field numbers here are below 16 times 128: a tag takes one or two bytes.
inline size_t TagSize(uint32_t field) { return field < 16 ? 1 : 2; }
inline size_t VarintFieldSize(uint32_t field, uint64_t value) { return TagSize(field) + VarintSize(value); }
inline size_t BytesFieldSize(uint32_t field, size_t bytes) { return TagSize(field) + VarintSize(bytes) + bytes; }

inline void PutVarintField(uint32_t field, uint64_t value, std::string* out) {
  PutVarint(field << 3, out);
  PutVarint(value, out);
}
// The tag and the size of a string, a message or a packed list, whose `bytes` bytes the caller writes next.
inline void PutBytesHead(uint32_t field, size_t bytes, std::string* out) {
  PutVarint((field << 3) | 2, out);
  PutVarint(bytes, out);
}
inline void PutBytesField(uint32_t field, std::string_view bytes, std::string* out) {
  PutBytesHead(field, bytes.size(), out);
  out->append(bytes);
}

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_PROTOBUF_WRITER_H_
