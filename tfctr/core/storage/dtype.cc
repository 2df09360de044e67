#include "tfctr/core/storage/dtype.h"

#include <string>

namespace tfctr {
namespace {

struct Entry {
  DType dtype;
  const char* name;
  size_t size;
};

constexpr Entry kEntries[] = {
    {DType::kFloat32, "float32", 4}, {DType::kFloat16, "float16", 2}, {DType::kBFloat16, "bfloat16", 2},
    {DType::kFloat64, "float64", 8}, {DType::kInt32, "int32", 4},     {DType::kInt64, "int64", 8},
    {DType::kUInt8, "uint8", 1},     {DType::kInt8, "int8", 1},       {DType::kBool, "bool", 1},
    {DType::kInt16, "int16", 2},     {DType::kUInt16, "uint16", 2},   {DType::kUInt32, "uint32", 4},
    {DType::kUInt64, "uint64", 8},
};

}  // namespace

size_t DTypeSize(DType dtype) {
  for (const Entry& entry : kEntries) {
    if (entry.dtype == dtype) return entry.size;
  }
  return 0;
}

const char* DTypeName(DType dtype) {
  for (const Entry& entry : kEntries) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "invalid";
}

DType DTypeFromName(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return entry.dtype;
  }
  return DType::kInvalid;
}

Result<uint64_t> DenseBytes(DType dtype, const std::vector<int64_t>& shape) {
  uint64_t bytes = DTypeSize(dtype);
  if (bytes == 0) return Status::Invalid("no such element type");
  bool empty = false;
  for (int64_t dim : shape) {
    if (dim < 0) return Status::Invalid("negative dimension " + std::to_string(dim));
    empty = empty || dim == 0;
  }
  if (empty) return uint64_t{0};
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes) || bytes > (uint64_t{1} << 62)) {
      return Status::Invalid("the array is too large: more than 2^62 bytes");
    }
  }
  return bytes;
}

}  // namespace tfctr
