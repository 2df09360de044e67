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
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES(context, columns_.size() == types.size() && by_rows_ <= static_cast<int64_t>(types.size()),
                absl::InvalidArgumentError("columns must have one entry per tensor, by_rows at most as many"));
    for (size_t i = 0; i < types.size(); ++i) {
      const int64_t size = tensorflow::DataTypeSize(types[i]);
      OP_REQUIRES(context, size > 0 && columns_[i] > 0,
                  absl::InvalidArgumentError(Name(i) + " of type " + tensorflow::DataTypeString(types[i]) + " with " +
                                             std::to_string(columns_[i]) + " columns can't be packed"));
      bytes_.push_back(columns_[i] * size);
      words_.push_back((bytes_.back() + kWord - 1) / kWord);
      (static_cast<int64_t>(i) < by_rows_ ? row_words_ : user_words_) += words_.back();
    }
  }

  void Compute(OpKernelContext* context) override {
    int64_t rows = 0;
    int64_t users = 0;
    OP_REQUIRES_OK(context, CommonRows(context, 0, by_rows_, &rows));
    OP_REQUIRES_OK(context, CommonRows(context, by_rows_, context->num_inputs(), &users));
    const int64_t behind = rows == 0 ? 0 : (users * user_words_ + rows - 1) / rows;
    tensorflow::AllocatorAttributes attributes;
    attributes.set_on_host(true);
    attributes.set_gpu_compatible(true);
    Tensor* packed = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({row_words_ + behind, rows}), &packed,
                                                     attributes));
    if (rows == 0) return;
    char* to = static_cast<char*>(packed->data());
    for (int64_t i = 0; i < by_rows_; ++i) {
      const size_t k = static_cast<size_t>(i);
      CopyRows(context->input(static_cast<int>(i)), k, rows, words_[k], to);
      to += rows * words_[k] * kWord;
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
      if (tensor.dims() == 0 || tensor.NumElements() != found * columns_[k]) {
        return absl::InvalidArgumentError(Name(k) + " has shape " + tensor.shape().DebugString() +
                                          ", expected rows of " + std::to_string(columns_[k]) + " elements");
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

  std::string Name(size_t i) const { return i < names_.size() ? names_[i] : "tensor " + std::to_string(i); }

  std::vector<int64_t> columns_;
  std::vector<std::string> names_;
  int64_t by_rows_ = 0;
  std::vector<int64_t> bytes_;  // of one row of each tensor
  std::vector<int64_t> words_;  // the same in words, rounded up
  int64_t row_words_ = 0;
  int64_t user_words_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfctrPackRows").Device(tensorflow::DEVICE_CPU), PackRowsOp);

}  // namespace
}  // namespace tfctr
