// Kernel of TfctrPackRows (transfer_ops.cc has the layout). Thread-safe (no state after construction); one copy of
// every tensor, in memory that a GPU can read directly where there is one.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tfctr {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr int64_t kWord = 4;

class PackRowsOp : public tensorflow::OpKernel {
 public:
  explicit PackRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<tensorflow::DataType> types;
    OP_REQUIRES_OK(context, context->GetAttr("T", &types));
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(context, context->GetAttr("by_rows", &by_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("open", &open_));
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES(
        context, columns_.size() == types.size() && by_rows_ <= static_cast<int64_t>(types.size()) && open_ <= by_rows_,
        absl::InvalidArgumentError("columns must have one entry per tensor, by_rows at most as many, open at most "
                                   "by_rows"));
    for (size_t i = 0; i < types.size(); ++i) {
      const int64_t size = tensorflow::DataTypeSize(types[i]);
      OP_REQUIRES(context, size > 0 && columns_[i] > 0,
                  absl::InvalidArgumentError(Name(i) + " of type " + tensorflow::DataTypeString(types[i]) + " with " +
                                             std::to_string(columns_[i]) + " columns can't be packed"));
      bytes_.push_back(columns_[i] * size);
      words_.push_back((bytes_.back() + kWord - 1) / kWord);
      const int64_t number = static_cast<int64_t>(i);
      (number >= by_rows_ ? user_words_ : IsOpen(number) ? open_words_ : row_words_) += words_.back();
    }
  }

  void Compute(OpKernelContext* context) override {
    int64_t rows = 0;
    int64_t users = 0;
    OP_REQUIRES_OK(context, CommonRows(context, 0, by_rows_, &rows));
    OP_REQUIRES_OK(context, CommonRows(context, by_rows_, context->num_inputs(), &users));
    const int64_t positions = open_ == 0 ? 0 : context->input(static_cast<int>(by_rows_ - 1)).dim_size(1);
    OP_REQUIRES_OK(context, CommonPositions(context, positions));
    const int64_t known = row_words_ + positions * open_words_;
    const int64_t behind = rows == 0 ? 0 : (users * user_words_ + rows - 1) / rows;
    tensorflow::AllocatorAttributes attributes;
    attributes.set_on_host(true);
    attributes.set_gpu_compatible(true);
    Tensor* packed = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, tensorflow::TensorShape({known + behind, rows}), &packed, attributes));
    if (rows == 0) return;
    char* to = static_cast<char*>(packed->data());
    for (int64_t i = 0; i < by_rows_; ++i) {
      const size_t k = static_cast<size_t>(i);
      const int64_t count = IsOpen(i) ? rows * positions : rows;
      CopyRows(context->input(static_cast<int>(i)), k, count, words_[k], to);
      to += count * words_[k] * kWord;
    }
    char* const end = to + behind * rows * kWord;
    char* column = to;
    for (int64_t i = by_rows_; i < context->num_inputs(); ++i) {
      const size_t k = static_cast<size_t>(i);
      CopyRows(context->input(static_cast<int>(i)), k, users, user_words_, column);
      column += words_[k] * kWord;
    }
    char* const used = to + users * user_words_ * kWord;
    std::memset(used, 0, static_cast<size_t>(end - used));
  }

 private:
  bool IsOpen(int64_t number) const { return number < by_rows_ && number >= by_rows_ - open_; }

  // Row r of the tensor goes to `to` + r * stride words; the bytes that fill up its last word are zeros.
  void CopyRows(const Tensor& tensor, size_t k, int64_t rows, int64_t stride, char* to) const {
    const char* from = static_cast<const char*>(tensor.data());
    const size_t bytes = static_cast<size_t>(bytes_[k]);
    if (static_cast<int64_t>(bytes) == stride * kWord) {
      std::memcpy(to, from, static_cast<size_t>(rows) * bytes);
      return;
    }
    const size_t fill = static_cast<size_t>(words_[k] * kWord) - bytes;
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(to, from, bytes);
      std::memset(to + bytes, 0, fill);
      from += bytes;
      to += stride * kWord;
    }
  }

  absl::Status CommonRows(OpKernelContext* context, int64_t first, int64_t last, int64_t* rows) const {
    for (int64_t i = first; i < last; ++i) {
      const Tensor& tensor = context->input(static_cast<int>(i));
      const size_t k = static_cast<size_t>(i);
      const int64_t found = tensor.dims() == 0 ? 0 : tensor.dim_size(0);
      const bool open = IsOpen(i);
      const int64_t positions = open && tensor.dims() > 1 ? tensor.dim_size(1) : 1;
      if (tensor.dims() < (open ? 2 : 1) || tensor.NumElements() != found * positions * columns_[k]) {
        return absl::InvalidArgumentError(Name(k) + " has shape " + tensor.shape().DebugString() +
                                          ", expected rows of " + (open ? "positions of " : "") +
                                          std::to_string(columns_[k]) + " elements");
      }
      if (i == first) *rows = found;
      if (found != *rows) {
        return absl::InvalidArgumentError(Name(k) + " has " + std::to_string(found) + " rows, " +
                                          Name(static_cast<size_t>(first)) + " has " + std::to_string(*rows) +
                                          "; what crosses to the dense device together must have equally many");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CommonPositions(OpKernelContext* context, int64_t positions) const {
    for (int64_t i = by_rows_ - open_; i < by_rows_; ++i) {
      const int64_t found = context->input(static_cast<int>(i)).dim_size(1);
      if (found != positions) {
        return absl::InvalidArgumentError(Name(static_cast<size_t>(i)) + " has " + std::to_string(found) +
                                          " positions, " + Name(static_cast<size_t>(by_rows_ - 1)) + " has " +
                                          std::to_string(positions));
      }
    }
    return absl::OkStatus();
  }

  std::string Name(size_t i) const { return i < names_.size() ? names_[i] : "tensor " + std::to_string(i); }

  std::vector<int64_t> columns_;
  std::vector<std::string> names_;
  int64_t by_rows_ = 0;
  int64_t open_ = 0;
  std::vector<int64_t> bytes_;  // of one row of each tensor; of one position of an open one
  std::vector<int64_t> words_;  // the same in words, rounded up
  int64_t row_words_ = 0;
  int64_t open_words_ = 0;
  int64_t user_words_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfctrPackRows").Device(tensorflow::DEVICE_CPU), PackRowsOp);

}  // namespace
}  // namespace tfctr
