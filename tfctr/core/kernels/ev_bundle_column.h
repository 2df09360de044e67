// One tensor of a bundle, read in windows of rows.
//
// Thread-safety: none; a BundleReader is used by one thread at a time. Cost: a window that is a slice as it was written
// is read straight into its tensor; other windows are put together from the slices that they meet. A tensor that was
// written in one piece is read once and kept.
#ifndef TFCTR_CORE_KERNELS_EV_BUNDLE_COLUMN_H_
#define TFCTR_CORE_KERNELS_EV_BUNDLE_COLUMN_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace tfctr {

class BundleColumn {
 public:
  // `what` begins messages: "embedding variable 'x' can't be restored from checkpoint 'y': ".
  BundleColumn(tensorflow::BundleReader* reader, std::string name, std::string what)
      : reader_(reader), name_(std::move(name)), what_(std::move(what)) {}

  bool exists() const { return reader_->Contains(name_); }
  const std::string& name() const { return name_; }

  // Reads dtype, shape and slices. InvalidArgument naming the tensor unless it is a `dtype` of [rows] (width 0) or
  // [rows, width]; rows < 0 takes any number.
  absl::Status Open(tensorflow::DataType dtype, int64_t rows, int64_t width);

  int64_t rows() const { return rows_; }
  // (first row, rows) of the pieces, in order.
  const std::vector<std::pair<int64_t, int64_t>>& pieces() const { return pieces_; }

  // Rows [first, first + rows) into `to`, whose memory is used again where it has the right shape.
  absl::Status Read(int64_t first, int64_t rows, tensorflow::Tensor* to);

 private:
  absl::Status Failed(const absl::Status& status) const;

  tensorflow::BundleReader* reader_;
  std::string name_;
  std::string what_;
  tensorflow::DataType dtype_ = tensorflow::DT_INVALID;
  int64_t rows_ = 0;
  int64_t width_ = 0;
  bool sliced_ = false;
  std::vector<std::pair<int64_t, int64_t>> pieces_;
  bool has_whole_ = false;
  tensorflow::Tensor whole_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_KERNELS_EV_BUNDLE_COLUMN_H_
