// The packed form of a request: every numeric input in one byte arena, all shapes in one int64 list, all strings in one
// list.
//
//   arena    uint8[n]   numeric inputs one after the other, each segment starting at a multiple of 64 bytes
//   shapes   int64[m]   for each input, strings included: rank, d0, ..., d(rank-1)
//   strings  string[s]  the elements of the string inputs, in input order
//
// `ParsePackedLayout` turns the three into one `PackedInput` per input and refuses anything that does not fit exactly:
// what it accepts can be read without further checks. `PackedSegments` is the writer's side: it hands out the same
// offsets.
//
// Thread-safety: plain functions and values. Cost: one pass over `shapes`; no allocation when `inputs` has the
// capacity. Knows no TensorFlow: an input's dtype is its element size in bytes, 0 for strings.
#ifndef TFCTR_CORE_LOOKUP_PACKED_LAYOUT_H_
#define TFCTR_CORE_LOOKUP_PACKED_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tfctr {

inline constexpr uint64_t kPackedAlignment = 64;
inline constexpr int64_t kPackedMaxRank = 254;  // TensorFlow's limit

inline constexpr uint64_t PackedRoundUp(uint64_t bytes) {
  return (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
}

// One input, pointing into the caller's `shapes`, which must outlive it.
struct PackedInput {
  uint32_t element_bytes = 0;  // 0: strings
  int32_t rank = 0;
  const int64_t* dims = nullptr;  // [rank]
  int64_t elements = 0;           // product of dims
  uint64_t offset = 0;            // first byte in the arena; for strings, first element in `strings`

  bool is_string() const { return element_bytes == 0; }
  uint64_t bytes() const { return static_cast<uint64_t>(elements) * element_bytes; }
};

// Hands out places for inputs in order; used by whoever writes the packed form.
class PackedSegments {
 public:
  // Byte offset in the arena for `bytes` bytes of a numeric input.
  uint64_t AddNumeric(uint64_t bytes) {
    const uint64_t offset = arena_bytes_;
    arena_bytes_ += PackedRoundUp(bytes);
    return offset;
  }
  // Index of the first of `elements` strings.
  uint64_t AddStrings(uint64_t elements) {
    const uint64_t first = strings_;
    strings_ += elements;
    return first;
  }
  uint64_t arena_bytes() const { return arena_bytes_; }
  uint64_t strings() const { return strings_; }

 private:
  uint64_t arena_bytes_ = 0;
  uint64_t strings_ = 0;
};

// Product of non-negative `dims` into `elements`; false when a dim is negative or when the product (or the byte count)
// would not fit.
inline bool PackedElementCount(const int64_t* dims, int32_t rank, uint32_t element_bytes, int64_t* elements) {
  uint64_t product = 1;
  bool zero = false;
  for (int32_t d = 0; d < rank; ++d) {
    if (dims[d] < 0) return false;
    if (dims[d] == 0) zero = true;
  }
  if (zero) {
    *elements = 0;
    return true;
  }
  for (int32_t d = 0; d < rank; ++d) {
    if (__builtin_mul_overflow(product, static_cast<uint64_t>(dims[d]), &product)) return false;
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(product, static_cast<uint64_t>(element_bytes == 0 ? 1 : element_bytes), &bytes))
    return false;
  if (bytes > static_cast<uint64_t>(INT64_MAX) / 2) return false;
  *elements = static_cast<int64_t>(product);
  return true;
}

// Parses the packed form of `count` inputs whose element sizes are `element_bytes` (0 = strings). On success `inputs`
// has `count` entries and true is returned. Otherwise false, and `error` says which input does not fit and why.
inline bool ParsePackedLayout(const uint32_t* element_bytes, size_t count, const int64_t* shapes, size_t shapes_size,
                              uint64_t arena_bytes, uint64_t strings, std::vector<PackedInput>* inputs,
                              std::string* error) {
  inputs->resize(count);
  PackedSegments segments;
  uint64_t end = 0;  // of the last segment, without its padding
  size_t at = 0;
  const auto fail = [&](size_t input, const std::string& what) {
    *error = "packed input " + std::to_string(input) + " of " + std::to_string(count) + ": " + what;
    return false;
  };
  for (size_t i = 0; i < count; ++i) {
    if (at >= shapes_size) return fail(i, "`shapes` ends after " + std::to_string(shapes_size) + " numbers");
    const int64_t rank = shapes[at++];
    if (rank < 0 || rank > kPackedMaxRank) return fail(i, "rank " + std::to_string(rank));
    if (static_cast<uint64_t>(rank) > shapes_size - at) {
      return fail(
          i, "rank " + std::to_string(rank) + " but `shapes` ends after " + std::to_string(shapes_size) + " numbers");
    }
    PackedInput& input = (*inputs)[i];
    input.element_bytes = element_bytes[i];
    input.rank = static_cast<int32_t>(rank);
    input.dims = shapes + at;
    at += static_cast<size_t>(rank);
    if (!PackedElementCount(input.dims, input.rank, input.element_bytes, &input.elements)) {
      return fail(i, "its dimensions are negative or too large");
    }
    if (input.is_string()) {
      const uint64_t elements = static_cast<uint64_t>(input.elements);
      if (elements > strings - segments.strings()) {
        return fail(i, std::to_string(elements) + " strings, but `strings` has only " +
                           std::to_string(strings - segments.strings()) + " left");
      }
      input.offset = segments.AddStrings(elements);
    } else {
      const uint64_t bytes = input.bytes();
      const uint64_t begin = segments.arena_bytes();
      if (begin > arena_bytes || bytes > arena_bytes - begin) {
        // An empty segment may start in the padding that the arena's last segment leaves out.
        if (bytes != 0) {
          return fail(i, std::to_string(bytes) + " bytes at " + std::to_string(begin) + ", but the arena has " +
                             std::to_string(arena_bytes));
        }
      }
      input.offset = bytes == 0 ? 0 : segments.AddNumeric(bytes);
      if (bytes != 0) end = begin + bytes;
    }
  }
  if (at != shapes_size) {
    *error = "`shapes` has " + std::to_string(shapes_size) + " numbers, " + std::to_string(count) + " inputs use " +
             std::to_string(at);
    return false;
  }
  if (segments.strings() != strings) {
    *error =
        "`strings` has " + std::to_string(strings) + " elements, the shapes say " + std::to_string(segments.strings());
    return false;
  }
  if (arena_bytes > PackedRoundUp(end)) {
    *error = "the arena has " + std::to_string(arena_bytes) + " bytes, the shapes say " + std::to_string(end);
    return false;
  }
  return true;
}

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_PACKED_LAYOUT_H_
