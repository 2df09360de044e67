// A tensor as the lookup kernels see it: dtype, shape and a pointer, whether it came as an op argument or lies in the
// packed arena. Knows no TensorFlow; strings are reached through a function pointer.
// Thread-safety: plain value. Cost: copies dimensions, never data.
#ifndef TFCTR_CORE_LOOKUP_TENSOR_VIEW_H_
#define TFCTR_CORE_LOOKUP_TENSOR_VIEW_H_

#include <cstdint>
#include <string_view>

#include "tfctr/core/storage/dtype.h"

namespace tfctr {

// Type of an input: a numeric dtype, or strings.
struct ValueType {
  DType dtype = DType::kInvalid;
  bool is_string = false;
};

// Strings [begin, begin + n) of a string tensor; many at a time, as the call cannot be inlined.
using StringsAt = void (*)(const void* data, int64_t begin, int64_t n, std::string_view* out);

struct TensorView {
  static constexpr int kMaxRank = 8;

  DType dtype = DType::kInvalid;
  bool is_string = false;
  int32_t rank = 0;  // -1: more than kMaxRank, `dims` is not filled
  int64_t dims[kMaxRank] = {};
  int64_t elements = 0;
  const void* data = nullptr;
  StringsAt strings_at = nullptr;

  std::string_view StringValue(int64_t index) const {
    std::string_view value;
    strings_at(data, index, 1, &value);
    return value;
  }
};

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_TENSOR_VIEW_H_
