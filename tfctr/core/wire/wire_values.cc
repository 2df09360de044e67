// The values of a tensor: raw bytes as they are, lists of a field decoded.
#include <cstring>
#include <limits>
#include <type_traits>

#include "tfctr/core/wire/wire_tensor.h"

namespace tfctr {

namespace {

constexpr int64_t kTooMany = -1, kBadValue = -2, kMalformedList = -3;

bool Fail(std::string text, std::string* got) {
  *got = std::move(text);
  return false;
}

// A varint as protobuf gives it to a field of type S (int32 keeps the low 32 bits), as a T. False when it does not fit.
template <typename S, typename T>
inline bool PutVarint(uint64_t wide, T* to) {
  if constexpr (std::is_same_v<T, bool>) {
    *to = wide != 0;
    return true;
  } else {
    const S number = static_cast<S>(wide);
    const T value = static_cast<T>(number);
    *to = value;
    if constexpr (sizeof(T) >= sizeof(S)) return true;
    return static_cast<S>(value) == number && (value < T{0}) == (number < S{0});
  }
}

// The seven-bit groups of up to eight bytes, put together.
inline uint64_t JoinGroups(uint64_t word) {
  word = (word & 0x007F007F007F007Fu) | ((word & 0x7F007F007F007F00u) >> 1);
  word = (word & 0x00003FFF00003FFFu) | ((word & 0x3FFF00003FFF0000u) >> 2);
  return (word & 0x000000000FFFFFFFu) | ((word & 0x0FFFFFFF00000000u) >> 4);
}

// Appends the varints of a packed list to out[count...].
template <typename S, typename T>
int64_t PutPackedVarints(std::string_view packed, T* out, int64_t count, int64_t capacity) {
  const char* at = packed.data();
  const char* const end = at + packed.size();
  constexpr uint64_t kStops = 0x8080808080808080u;
  while (at != end) {
    if (count == capacity) return kTooMany;
    uint64_t wide;
    if (end - at >= static_cast<std::ptrdiff_t>(sizeof(uint64_t))) {
      uint64_t word;
      std::memcpy(&word, at, sizeof(word));
      // Branches by the length, not a sum: ids of a feature are mostly of one length, so that the processor starts on
      // the next one before it knows where this one ends.
      if ((word & 0x80) == 0) {
        wide = word & 0x7F;
        at += 1;
      } else if ((word & 0x8000) == 0) {
        wide = (word & 0x7F) | ((word & 0x7F00) >> 1);
        at += 2;
      } else if ((word & 0x800000) == 0) {
        wide = JoinGroups(word & 0x7F7F7F);
        at += 3;
      } else if ((word & 0x80000000) == 0) {
        wide = JoinGroups(word & 0x7F7F7F7F);
        at += 4;
      } else if ((word & 0x8000000000) == 0) {
        wide = JoinGroups(word & 0x7F7F7F7F7F);
        at += 5;
      } else if ((~word & kStops) != 0) {
        const uint64_t stops = ~word & kStops;
        wide = JoinGroups(word & (stops ^ (stops - 1)) & ~kStops);
        at += (__builtin_ctzll(stops) >> 3) + 1;
      } else if (!ProtobufReader::ReadVarint(&at, end, &wide)) {
        return kMalformedList;
      }
    } else if (!ProtobufReader::ReadVarint(&at, end, &wide)) {
      return kMalformedList;
    }
    if (!PutVarint<S, T>(wide, out + count)) return kBadValue;
    ++count;
  }
  return count;
}

// Decodes every value of the list into out[0...capacity). Returns how many there are, or what is wrong.
template <typename S, typename T>
int64_t DecodeVarints(const WireTensor& tensor, int64_t capacity, T* out) {
  int64_t count = 0;
  ProtobufReader reader(tensor.message);
  while (reader.Next()) {
    if (reader.field() != tensor.list_field) continue;
    if (reader.kind() == WireKind::kVarint) {
      if (count == capacity) return kTooMany;
      if (!PutVarint<S, T>(reader.number(), out + count)) return kBadValue;
      ++count;
    } else if (reader.kind() == WireKind::kBytes) {
      count = PutPackedVarints<S, T>(reader.bytes(), out, count, capacity);
      if (count < 0) return count;
    }
  }
  return reader.failed() ? kMalformedList : count;
}

template <typename T>
int64_t DecodeFixed(const WireTensor& tensor, int64_t capacity, T* out) {
  constexpr WireKind kKind = sizeof(T) == 4 ? WireKind::kFixed32 : WireKind::kFixed64;
  int64_t count = 0;
  ProtobufReader reader(tensor.message);
  while (reader.Next()) {
    if (reader.field() != tensor.list_field) continue;
    if (reader.kind() == kKind) {
      if (count == capacity) return kTooMany;
      out[count++] = static_cast<T>(reader.number());
    } else if (reader.kind() == WireKind::kBytes) {
      const std::string_view packed = reader.bytes();
      if (packed.size() % sizeof(T) != 0) return kMalformedList;
      const auto more = static_cast<int64_t>(packed.size() / sizeof(T));
      if (more > capacity - count) return kTooMany;
      if (more > 0) std::memcpy(out + count, packed.data(), packed.size());
      count += more;
    }
  }
  return reader.failed() ? kMalformedList : count;
}

// Narrow integers: from int32 (TensorProto, signed KServe types) or uint32.
template <typename T>
int64_t DecodeNarrow(const WireTensor& tensor, int64_t capacity, char* out) {
  T* to = reinterpret_cast<T*>(out);
  if (tensor.coding == WireTensor::Coding::kUint32) return DecodeVarints<uint32_t, T>(tensor, capacity, to);
  return DecodeVarints<int32_t, T>(tensor, capacity, to);
}

int64_t DecodeList(const WireTensor& tensor, int64_t capacity, char* out) {
  switch (tensor.type->type) {
    case ElementType::kFloat:
      return DecodeFixed(tensor, capacity, reinterpret_cast<uint32_t*>(out));
    case ElementType::kDouble:
      return DecodeFixed(tensor, capacity, reinterpret_cast<uint64_t*>(out));
    case ElementType::kInt64:
    case ElementType::kUint64:
      return DecodeVarints<uint64_t, uint64_t>(tensor, capacity, reinterpret_cast<uint64_t*>(out));
    case ElementType::kInt32:
    case ElementType::kUint32:
      return DecodeVarints<uint32_t, uint32_t>(tensor, capacity, reinterpret_cast<uint32_t*>(out));
    case ElementType::kBool:
      return DecodeVarints<uint64_t, bool>(tensor, capacity, reinterpret_cast<bool*>(out));
    case ElementType::kHalf:
    case ElementType::kBfloat16:
    case ElementType::kUint16:
      return DecodeNarrow<uint16_t>(tensor, capacity, out);
    case ElementType::kUint8:
      return DecodeNarrow<uint8_t>(tensor, capacity, out);
    case ElementType::kInt8:
      return DecodeNarrow<int8_t>(tensor, capacity, out);
    case ElementType::kInt16:
      return DecodeNarrow<int16_t>(tensor, capacity, out);
    default:
      return kMalformedList;
  }
}

bool FailList(const WireTensor& tensor, int64_t code, std::string* got) {
  if (code == kTooMany) return Fail(tensor.Describe() + " with more values than that", got);
  if (code == kBadValue) return Fail(tensor.Describe() + " with a value that does not fit its type", got);
  return Fail(tensor.Describe() + " with values that are malformed or cut off", got);
}

// Whether a list that is shorter than the shape may be filled up to it: the protocol does so, and within the budget.
bool MayFill(const WireTensor& tensor, int64_t count, int64_t element_bytes, int64_t* filled, std::string* got) {
  if (!tensor.fills) {
    return Fail(tensor.Describe() + " with " + std::to_string(count) + " value" + (count == 1 ? "" : "s"), got);
  }
  const int64_t bytes = tensor.elements * element_bytes;  // CountElements: fits
  if (bytes > kMaxFilledBytes - *filled) {
    return Fail(tensor.Describe() + " with " + std::to_string(count) + " value" + (count == 1 ? "" : "s") +
                    " (short lists of a request are filled up to " + std::to_string(kMaxFilledBytes >> 20) + " MiB)",
                got);
  }
  *filled += bytes;
  return true;
}

bool RawBools(const WireTensor& tensor, BlockMemory* memory, const char** data) {
  bool clean = true;
  for (const char byte : tensor.raw) clean = clean && static_cast<uint8_t>(byte) <= 1;
  if (clean) return true;
  char* out = memory->Take(tensor.raw.size());
  for (size_t i = 0; i < tensor.raw.size(); ++i) out[i] = tensor.raw[i] != 0 ? 1 : 0;
  *data = out;
  return true;
}

bool RawCount(const WireTensor& tensor, std::string* got) {
  return Fail(tensor.Describe() + " with " + std::to_string(tensor.raw.size()) + " bytes, which hold other strings",
              got);
}

// Lengths of all strings as varints, then the strings: tensor_content of TensorFlow's string tensors.
bool LengthsFirst(const WireTensor& tensor, std::string_view* out, std::string* got) {
  const char* at = tensor.raw.data();
  const char* const end = at + tensor.raw.size();
  uint64_t total = 0;
  for (int64_t i = 0; i < tensor.elements; ++i) {
    uint64_t size;
    if (!ProtobufReader::ReadVarint(&at, end, &size) || size > tensor.raw.size()) return RawCount(tensor, got);
    out[i] = std::string_view(nullptr, size);
    total += size;
  }
  if (total != static_cast<uint64_t>(end - at)) return RawCount(tensor, got);
  for (int64_t i = 0; i < tensor.elements; ++i) {
    out[i] = std::string_view(at, out[i].size());
    at += out[i].size();
  }
  return true;
}

// Four little-endian bytes of length before each string: KServe's BYTES.
bool LengthBeforeEach(const WireTensor& tensor, std::string_view* out, std::string* got) {
  const char* at = tensor.raw.data();
  const char* const end = at + tensor.raw.size();
  for (int64_t i = 0; i < tensor.elements; ++i) {
    uint32_t size;
    if (static_cast<size_t>(end - at) < sizeof(size)) return RawCount(tensor, got);
    std::memcpy(&size, at, sizeof(size));
    at += sizeof(size);
    if (size > static_cast<size_t>(end - at)) return RawCount(tensor, got);
    out[i] = std::string_view(at, size);
    at += size;
  }
  return at == end || RawCount(tensor, got);
}

}  // namespace

bool ReadNumbers(const WireTensor& tensor, int64_t* filled, BlockMemory* memory, const char** data, std::string* got) {
  const int64_t element_bytes = tensor.type->bytes;
  if (tensor.is_raw) {
    if (tensor.raw.size() != static_cast<uint64_t>(tensor.elements * element_bytes)) {
      return Fail(tensor.Describe() + " with " + std::to_string(tensor.raw.size()) + " bytes instead of " +
                      std::to_string(tensor.elements * element_bytes),
                  got);
    }
    *data = tensor.raw.data();
    return tensor.type->type != ElementType::kBool || RawBools(tensor, memory, data);
  }
  // Every value takes at least one byte: a larger shape can only be filled up.
  const auto most = static_cast<int64_t>(tensor.message.size());
  const int64_t capacity = std::min(tensor.elements, most);
  char* out = memory->Take(static_cast<size_t>(capacity * element_bytes));
  const int64_t count = DecodeList(tensor, capacity, out);
  if (count < 0) return FailList(tensor, count, got);
  if (count < tensor.elements) {
    if (!MayFill(tensor, count, element_bytes, filled, got)) return false;
    if (tensor.elements > capacity) {
      char* larger = memory->Take(static_cast<size_t>(tensor.elements * element_bytes));
      if (count > 0) std::memcpy(larger, out, static_cast<size_t>(count * element_bytes));
      out = larger;
    }
    const auto bytes = static_cast<size_t>(element_bytes);
    char* const end = out + static_cast<size_t>(tensor.elements) * bytes;
    char* at = out + static_cast<size_t>(count) * bytes;
    if (count == 0) {
      std::memset(at, 0, static_cast<size_t>(end - at));
    } else {
      // The last value, then twice as many each time.
      const char* const last = at - bytes;
      for (size_t done = bytes; at != end;) {
        const size_t more = std::min(done, static_cast<size_t>(end - at));
        std::memcpy(at, last, more);
        at += more;
        done += more;
      }
    }
  }
  *data = out;
  return true;
}

bool ReadStrings(const WireTensor& tensor, int64_t* filled, BlockMemory* memory, const std::string_view** data,
                 std::string* got) {
  constexpr int64_t kElementBytes = 24;  // of TensorFlow's string, into which each one goes
  if (tensor.is_raw) {
    if (static_cast<uint64_t>(tensor.elements) > tensor.raw.size()) return RawCount(tensor, got);
    auto* out = memory->TakeArray<std::string_view>(static_cast<size_t>(tensor.elements));
    *data = out;
    return tensor.raw_strings == WireTensor::RawStrings::kLengthsFirst ? LengthsFirst(tensor, out, got)
                                                                       : LengthBeforeEach(tensor, out, got);
  }
  const int64_t capacity = std::min(tensor.elements, static_cast<int64_t>(tensor.message.size() / 2));
  auto* out = memory->TakeArray<std::string_view>(static_cast<size_t>(capacity));
  int64_t count = 0;
  ProtobufReader reader(tensor.message);
  while (reader.Next()) {
    if (!reader.Is(tensor.list_field, WireKind::kBytes)) continue;
    if (count == capacity) return FailList(tensor, kTooMany, got);
    out[count++] = reader.bytes();
  }
  if (reader.failed()) return FailList(tensor, kMalformedList, got);
  if (count < tensor.elements) {
    if (!MayFill(tensor, count, kElementBytes, filled, got)) return false;
    if (tensor.elements > capacity) {
      auto* larger = memory->TakeArray<std::string_view>(static_cast<size_t>(tensor.elements));
      std::copy_n(out, count, larger);
      out = larger;
    }
    const std::string_view last = count > 0 ? out[count - 1] : std::string_view("", 0);
    std::fill(out + count, out + tensor.elements, last);
  }
  *data = out;
  return true;
}

}  // namespace tfctr
