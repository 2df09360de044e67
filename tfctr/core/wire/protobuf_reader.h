// Reads the bytes of a protobuf message field by field, without a schema and without copying.
//
// Accepts what protobuf's own parsers accept: varints of up to ten bytes whatever they hold, fields in any order,
// unknown fields of every wire type, groups (skipped, nested at most as deep as protobuf allows). Refuses what they
// refuse: a field number of 0, wire types 6 and 7, an end of a group that was not begun, tags and lengths of more than
// five bytes, and whatever the bytes end in the middle of.
//
// Thread-safety: a value; reads borrowed bytes only.
#ifndef TFCTR_CORE_WIRE_PROTOBUF_READER_H_
#define TFCTR_CORE_WIRE_PROTOBUF_READER_H_

#include <cstdint>
#include <cstring>
#include <string_view>

namespace tfctr {

enum class WireKind : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kGroup = 3, kEndGroup = 4, kFixed32 = 5 };

class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // The next field of the message; groups are skipped. False at the end, and for malformed bytes (see failed()). The
  // caller reads the value with the accessor of its kind, or skips it.
  bool Next() {
    while (at_ != end_) {
      uint32_t tag;
      if (!ReadTag(&tag)) return Fail();
      field_ = tag >> 3;
      kind_ = static_cast<WireKind>(tag & 7);
      switch (kind_) {
        case WireKind::kVarint:
          if (!ReadVarint(&number_)) return Fail();
          return true;
        case WireKind::kFixed64:
          if (!ReadFixed(&number_)) return Fail();
          return true;
        case WireKind::kFixed32: {
          uint32_t number;
          if (!ReadFixed(&number)) return Fail();
          number_ = number;
          return true;
        }
        case WireKind::kBytes:
          if (!ReadBytes(&bytes_)) return Fail();
          return true;
        case WireKind::kGroup:
          if (!SkipGroup(field_, 1)) return Fail();
          continue;
        default:
          return Fail();
      }
    }
    return false;
  }

  bool failed() const { return failed_; }
  uint32_t field() const { return field_; }
  WireKind kind() const { return kind_; }
  bool Is(uint32_t field, WireKind kind) const { return field_ == field && kind_ == kind; }
  // Of a varint, or of a fixed field (its bits).
  uint64_t number() const { return number_; }
  std::string_view bytes() const { return bytes_; }

  // One varint at `*at`; moves it. False when the bytes end, or for more than ten.
  static bool ReadVarint(const char** at, const char* end, uint64_t* value) {
    const char* p = *at;
    if (p != end && static_cast<int8_t>(*p) >= 0) {
      *value = static_cast<uint8_t>(*p);
      *at = p + 1;
      return true;
    }
    uint64_t result = 0;
    for (int shift = 0; shift < kMaxVarintBits && p != end; shift += 7) {
      const uint64_t byte = static_cast<uint8_t>(*p++);
      result |= (byte & 0x7F) << shift;  // of the tenth byte one bit is left, as in protobuf
      if (byte < 0x80) {
        *value = result;
        *at = p;
        return true;
      }
    }
    return false;
  }

 private:
  static constexpr int kMaxVarintBits = 70;
  static constexpr int kMaxGroupDepth = 100;

  bool Fail() {
    failed_ = true;
    at_ = end_;
    return false;
  }

  bool ReadVarint(uint64_t* value) { return ReadVarint(&at_, end_, value); }

  // A varint of at most five bytes and 32 bits.
  bool ReadShort(uint32_t* value) {
    const char* start = at_;
    uint64_t wide;
    if (!ReadVarint(&wide) || at_ - start > 5 || wide > UINT32_MAX) return false;
    *value = static_cast<uint32_t>(wide);
    return true;
  }

  bool ReadTag(uint32_t* tag) { return ReadShort(tag) && (*tag >> 3) != 0; }

  template <typename T>
  bool ReadFixed(T* value) {
    if (static_cast<size_t>(end_ - at_) < sizeof(T)) return false;
    std::memcpy(value, at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }

  bool ReadBytes(std::string_view* bytes) {
    uint32_t size;
    if (!ReadShort(&size) || size > static_cast<size_t>(end_ - at_)) return false;
    *bytes = std::string_view(at_, size);
    at_ += size;
    return true;
  }

  bool SkipGroup(uint32_t field, int depth) {
    if (depth > kMaxGroupDepth) return false;
    for (;;) {
      uint32_t tag;
      uint64_t number;
      uint32_t number32;
      std::string_view bytes;
      if (at_ == end_ || !ReadTag(&tag)) return false;
      switch (static_cast<WireKind>(tag & 7)) {
        case WireKind::kVarint:
          if (!ReadVarint(&number)) return false;
          break;
        case WireKind::kFixed64:
          if (!ReadFixed(&number)) return false;
          break;
        case WireKind::kFixed32:
          if (!ReadFixed(&number32)) return false;
          break;
        case WireKind::kBytes:
          if (!ReadBytes(&bytes)) return false;
          break;
        case WireKind::kGroup:
          if (!SkipGroup(tag >> 3, depth + 1)) return false;
          break;
        case WireKind::kEndGroup:
          return tag >> 3 == field;
        default:
          return false;
      }
    }
  }

  const char* at_;
  const char* end_;
  uint32_t field_ = 0;
  WireKind kind_ = WireKind::kVarint;
  uint64_t number_ = 0;
  std::string_view bytes_;
  bool failed_ = false;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_PROTOBUF_READER_H_
