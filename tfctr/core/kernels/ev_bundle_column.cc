#include "tfctr/core/kernels/ev_bundle_column.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"

namespace tfctr {
namespace {

using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorSlice;

}  // namespace

absl::Status BundleColumn::Failed(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(what_, "tensor '", name_, "': ", status.message()));
}

absl::Status BundleColumn::Open(DataType dtype, int64_t rows, int64_t width) {
  DataType stored = tensorflow::DT_INVALID;
  TensorShape shape;
  TF_RETURN_IF_ERROR(Failed(reader_->LookupDtypeAndShape(name_, &stored, &shape)));
  // Numbers of a damaged file: a TensorShape of them might not be one.
  const bool fits = shape.dims() == (width == 0 ? 1 : 2) && (rows < 0 || shape.dim_size(0) == rows) &&
                    (width == 0 || shape.dim_size(1) == width);
  if (stored != dtype || !fits) {
    return absl::InvalidArgumentError(absl::StrCat(what_, "tensor '", name_, "' is ", DataTypeString(stored), " ",
                                                   shape.DebugString(), ", expected ", DataTypeString(dtype), " [",
                                                   rows < 0 ? std::string("rows") : absl::StrCat(rows),
                                                   width == 0 ? std::string() : absl::StrCat(",", width), "]"));
  }
  dtype_ = dtype;
  rows_ = shape.dim_size(0);
  width_ = width;
  std::vector<TensorSlice> slices;
  TF_RETURN_IF_ERROR(Failed(reader_->LookupTensorSlices(name_, &slices)));
  sliced_ = !slices.empty();
  pieces_.clear();
  for (const TensorSlice& slice : slices) {
    const bool whole_axis = slice.IsFullAt(0);
    pieces_.emplace_back(whole_axis ? 0 : slice.start(0), whole_axis ? rows_ : slice.length(0));
  }
  if (!sliced_ && rows_ > 0) pieces_.emplace_back(0, rows_);
  std::sort(pieces_.begin(), pieces_.end());
  int64_t next = 0;
  for (const auto& [first, count] : pieces_) {
    if (first != next) break;
    next += count;
  }
  if (next != rows_) {
    return absl::DataLossError(
        absl::StrCat(what_, "tensor '", name_, "' lacks rows from ", next, " on, of ", rows_, " rows"));
  }
  return absl::OkStatus();
}

absl::Status BundleColumn::Read(int64_t first, int64_t rows, Tensor* to) {
  if (!sliced_) {
    if (!has_whole_) {
      whole_ = Tensor(dtype_, width_ == 0 ? TensorShape({rows_}) : TensorShape({rows_, width_}));
      TF_RETURN_IF_ERROR(Failed(reader_->Lookup(name_, &whole_)));
      has_whole_ = true;
    }
    *to = first == 0 && rows == rows_ ? whole_ : whole_.Slice(first, first + rows);
    return absl::OkStatus();
  }
  const TensorShape shape = width_ == 0 ? TensorShape({rows}) : TensorShape({rows, width_});
  if (to->dtype() != dtype_ || to->shape() != shape) *to = Tensor(dtype_, shape);
  TensorSlice slice(shape.dims());
  slice.set_start(0, first);
  slice.set_length(0, rows);
  return Failed(reader_->LookupSlice(name_, slice, to));
}

}  // namespace tfctr
