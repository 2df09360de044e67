// Zero-copy reading of a packed request (packed_layout.h) as TensorFlow tensors: every input becomes a slice of the
// arena or of the strings. Shared by the TfctrUnpack kernel and by the executor, which feeds unpacked graphs with the
// same slices.
//
// Thread-safety: values and pure functions. Cost: one slice (a reference count and a small object) per input.
#ifndef TFCTR_CORE_KERNELS_UNPACK_SLICES_H_
#define TFCTR_CORE_KERNELS_UNPACK_SLICES_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tfctr/core/lookup/packed_layout.h"

namespace tfctr {

// Bytes of one element as the packed layout counts them (0 for strings); false for types that can't be packed.
inline bool PackedElementBytes(tensorflow::DataType dtype, uint32_t* bytes) {
  if (dtype == tensorflow::DT_STRING) {
    *bytes = 0;
    return true;
  }
  const int size = tensorflow::DataTypeSize(dtype);
  *bytes = static_cast<uint32_t>(size);
  return size > 0;
}

// The element sizes of a layout, or InvalidArgument naming the input whose type can't be packed.
inline absl::Status PackedElementSizes(const std::vector<tensorflow::DataType>& layout, std::vector<uint32_t>* sizes) {
  sizes->resize(layout.size());
  for (size_t i = 0; i < layout.size(); ++i) {
    if (!PackedElementBytes(layout[i], &(*sizes)[i])) {
      return absl::InvalidArgumentError("packed input " + std::to_string(i) + " has type " +
                                        tensorflow::DataTypeString(layout[i]) + ", which can't be packed");
    }
  }
  return absl::OkStatus();
}

// Parses a packed request. `inputs` points into `shapes`, which must stay alive.
inline absl::Status ParsePackedTensors(const std::vector<uint32_t>& sizes, const tensorflow::Tensor& arena,
                                       const tensorflow::Tensor& shapes, const tensorflow::Tensor& strings,
                                       std::vector<PackedInput>* inputs) {
  if (arena.dtype() != tensorflow::DT_UINT8 || arena.dims() != 1 || shapes.dtype() != tensorflow::DT_INT64 ||
      shapes.dims() != 1 || strings.dtype() != tensorflow::DT_STRING || strings.dims() != 1) {
    return absl::InvalidArgumentError("a packed request is arena uint8[n], shapes int64[m], strings string[s]; got " +
                                      arena.DeviceSafeDebugString() + ", " + shapes.DeviceSafeDebugString() + ", " +
                                      strings.DeviceSafeDebugString());
  }
  std::string error;
  if (!ParsePackedLayout(sizes.data(), sizes.size(), static_cast<const int64_t*>(shapes.data()),
                         static_cast<size_t>(shapes.NumElements()), static_cast<uint64_t>(arena.NumElements()),
                         static_cast<uint64_t>(strings.NumElements()), inputs, &error)) {
    return absl::InvalidArgumentError(error);
  }
  return absl::OkStatus();
}

// One input as a tensor that shares memory with `arena` or `strings` (a copy only where the arena itself is unaligned).
inline absl::Status PackedSlice(const PackedInput& input, tensorflow::DataType dtype, const tensorflow::Tensor& arena,
                                const tensorflow::Tensor& strings, tensorflow::Tensor* out) {
  tensorflow::TensorShape shape;
  for (int32_t d = 0; d < input.rank; ++d) {
    const absl::Status status = shape.AddDimWithStatus(input.dims[d]);
    if (!status.ok()) return status;
  }
  if (input.elements == 0) {
    *out = tensorflow::Tensor(dtype, shape);
    return absl::OkStatus();
  }
  const int64_t begin = static_cast<int64_t>(input.offset);
  const bool is_string = dtype == tensorflow::DT_STRING;
  const int64_t length = is_string ? input.elements : static_cast<int64_t>(input.bytes());
  const tensorflow::Tensor slice = (is_string ? strings : arena).Slice(begin, begin + length);
  if (is_string) {
    if (!out->CopyFrom(slice, shape)) return absl::InternalError("strings of a packed input do not take its shape");
    return absl::OkStatus();
  }
  if (reinterpret_cast<uintptr_t>(slice.data()) % kPackedAlignment == 0) {
    out->UnsafeCopyFromInternal(slice, dtype, shape);
    return absl::OkStatus();
  }
  *out = tensorflow::Tensor(dtype, shape);
  std::copy_n(static_cast<const char*>(slice.data()), length, static_cast<char*>(out->data()));
  return absl::OkStatus();
}

}  // namespace tfctr

#endif  // TFCTR_CORE_KERNELS_UNPACK_SLICES_H_
