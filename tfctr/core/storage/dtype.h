// Element types of table files: names are TensorFlow's and NumPy's (bfloat16 as in ml_dtypes), sizes in bytes.
// Thread-safety: pure functions.
#ifndef TFCTR_CORE_STORAGE_DTYPE_H_
#define TFCTR_CORE_STORAGE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

enum class DType : int {
  kInvalid = 0,
  kFloat32,
  kFloat16,
  kBFloat16,
  kFloat64,
  kInt32,
  kInt64,
  kUInt8,
  kInt8,
  kBool,
  kInt16,
  kUInt16,
  kUInt32,
  kUInt64,
};

// Bytes of one element; 0 for kInvalid.
TFCTR_EXPORT size_t DTypeSize(DType dtype);
// "float32", "bfloat16", ...; "invalid" for kInvalid.
TFCTR_EXPORT const char* DTypeName(DType dtype);
// kInvalid when `name` is none of ours.
TFCTR_EXPORT DType DTypeFromName(std::string_view name);
// Bytes of a dense array: product of the dimensions (1 for rank 0) times the element size. Negative dimensions,
// overflow and kInvalid are errors.
TFCTR_EXPORT Result<uint64_t> DenseBytes(DType dtype, const std::vector<int64_t>& shape);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_DTYPE_H_
