// Kernels of TfctrAddUserRows and TfctrJoinUserRows (tfctr/core/ops/split_ops.cc says what they do).
//
// Thread-safe (no state after construction). One pass over the item rows; the work is split over the intra-op threads
// by rows. TfctrAddUserRows writes into the buffer of `item` where nobody else needs that.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int kItem = 0;
constexpr int kUser = 1;
constexpr int kRowToUser = 2;
constexpr int64_t kBytesPerUnit = 4;  // about what a core moves per cost unit (nanosecond) of Shard

// Rows of a call: B item rows of K entries each, U user rows of K entries.
struct Rows {
  int64_t items = 0;
  int64_t users = 0;
  int64_t entries = 1;
};

std::string ShapeText(const Tensor& tensor) { return tensor.shape().DebugString(); }

// Checks the leading sizes and the values of row_to_user.
absl::Status CheckRows(const std::string& op, const Tensor& item, const Tensor& user, const Tensor& row_to_user,
                       Rows* rows) {
  if (row_to_user.dims() != 1 || item.dims() < 1 || user.dims() != item.dims()) {
    return absl::InvalidArgumentError(op + ": item " + ShapeText(item) + ", user " + ShapeText(user) +
                                      " and row_to_user " + ShapeText(row_to_user) +
                                      " do not fit: item and user need the same rank, row_to_user is a vector");
  }
  rows->items = row_to_user.dim_size(0);
  if (rows->items == 0) {
    if (item.dim_size(0) != 0) {
      return absl::InvalidArgumentError(op + ": item " + ShapeText(item) + " has rows, row_to_user has none");
    }
    return absl::OkStatus();
  }
  rows->entries = item.dim_size(0) / rows->items;
  const bool whole = rows->entries * rows->items == item.dim_size(0);
  if (!whole || (rows->entries > 0 && user.dim_size(0) % rows->entries != 0)) {
    return absl::InvalidArgumentError(op + ": item " + ShapeText(item) + " and user " + ShapeText(user) +
                                      " do not have the same number of entries for each of the " +
                                      std::to_string(rows->items) + " rows of row_to_user");
  }
  rows->users = rows->entries == 0 ? 0 : user.dim_size(0) / rows->entries;
  if (rows->entries == 0) return absl::OkStatus();
  const auto of_row = row_to_user.vec<int64_t>();
  for (int64_t row = 0; row < rows->items; ++row) {
    if (of_row(row) < 0 || of_row(row) >= rows->users) {
      return absl::InvalidArgumentError("row_to_user[" + std::to_string(row) + "] = " + std::to_string(of_row(row)) +
                                        " is not in [0, " + std::to_string(rows->users) + "), the users of " + op);
    }
  }
  return absl::OkStatus();
}

void ShardRows(OpKernelContext* context, int64_t rows, int64_t row_bytes,
               const std::function<void(int64_t, int64_t)>& work) {
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers.num_threads, workers.workers, rows, std::max<int64_t>(1, row_bytes / kBytesPerUnit), work);
}

template <typename T, bool relu>
void AddRow(const T* item, const T* user, int64_t count, T* out) {
  for (int64_t i = 0; i < count; ++i) {
    const T sum = item[i] + user[i];
    out[i] = relu && sum < T(0) ? T(0) : sum;
  }
}

template <typename T>
class AddUserRowsOp : public OpKernel {
 public:
  explicit AddUserRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("relu", &relu_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& item = context->input(kItem);
    const Tensor& user = context->input(kUser);
    const Tensor& row_to_user = context->input(kRowToUser);
    Rows rows;
    OP_REQUIRES_OK(context, CheckRows(name(), item, user, row_to_user, &rows));
    for (int d = 1; d < item.dims(); ++d) {
      OP_REQUIRES(context, item.dim_size(d) == user.dim_size(d),
                  absl::InvalidArgumentError(name() + ": item " + ShapeText(item) + " and user " + ShapeText(user) +
                                             " differ in axis " + std::to_string(d)));
    }
    const T* from = item.flat<T>().data();
    const T* users = user.flat<T>().data();
    Tensor* sum = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({kItem}, 0, item.shape(), &sum));
    if (rows.items == 0 || item.NumElements() == 0) return;
    const int64_t count = item.NumElements() / rows.items;
    T* to = sum->flat<T>().data();
    const int64_t* of_row = row_to_user.vec<int64_t>().data();
    ShardRows(context, rows.items, count * sizeof(T), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* mine = users + of_row[row] * count;
        if (relu_) {
          AddRow<T, true>(from + row * count, mine, count, to + row * count);
        } else {
          AddRow<T, false>(from + row * count, mine, count, to + row * count);
        }
      }
    });
  }

 private:
  bool relu_ = false;
};

template <typename T>
class JoinUserRowsOp : public OpKernel {
 public:
  explicit JoinUserRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(context, context->GetAttr("widths", &widths_));
    OP_REQUIRES_OK(context, context->GetAttr("sides", &sides_));
    OP_REQUIRES(context, axis_ >= 1 && widths_.size() == sides_.size(),
                absl::InvalidArgumentError(name() + ": axis must be 1 or more, widths and sides equally many"));
    for (size_t k = 0; k < widths_.size(); ++k) {
      OP_REQUIRES(context, widths_[k] >= 0 && sides_[k] >= kOfUser && sides_[k] <= kOfBoth,
                  absl::InvalidArgumentError(name() + ": segment " + std::to_string(k) + " has width " +
                                             std::to_string(widths_[k]) + " and side " + std::to_string(sides_[k])));
      if (sides_[k] != kOfItem) user_width_ += widths_[k];
      if (sides_[k] != kOfUser) item_width_ += widths_[k];
      width_ += widths_[k];
    }
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& item = context->input(kItem);
    const Tensor& user = context->input(kUser);
    const Tensor& row_to_user = context->input(kRowToUser);
    Rows rows;
    OP_REQUIRES_OK(context, CheckRows(name(), item, user, row_to_user, &rows));
    OP_REQUIRES_OK(context, CheckSizes(item, user));
    TensorShape shape = item.shape();
    shape.set_dim(static_cast<int>(axis_), width_);
    Tensor* joined = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &joined));
    if (rows.items == 0 || shape.num_elements() == 0) return;
    int64_t inner = 1;
    for (int d = static_cast<int>(axis_) + 1; d < item.dims(); ++d) inner *= item.dim_size(d);
    int64_t outer = rows.entries;  // blocks of segments per row
    for (int d = 1; d < axis_; ++d) outer *= item.dim_size(d);
    const T* items = item.flat<T>().data();
    const T* users = user.flat<T>().data();
    T* out = joined->flat<T>().data();
    const int64_t* of_row = row_to_user.vec<int64_t>().data();
    ShardRows(context, rows.items, outer * width_ * inner * sizeof(T), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from_item = items + row * outer * item_width_ * inner;
        const T* from_user = users + of_row[row] * outer * user_width_ * inner;
        T* to = out + row * outer * width_ * inner;
        for (int64_t block = 0; block < outer; ++block) JoinBlock(inner, &from_item, &from_user, &to);
      }
    });
  }

 private:
  enum Side : int64_t { kOfUser = 0, kOfItem = 1, kOfBoth = 2 };

  // One run of all segments; moves the pointers behind it.
  void JoinBlock(int64_t inner, const T** item, const T** user, T** to) const {
    for (size_t k = 0; k < widths_.size(); ++k) {
      const int64_t count = widths_[k] * inner;
      if (sides_[k] == kOfUser) {
        std::memcpy(*to, *user, static_cast<size_t>(count) * sizeof(T));
        *user += count;
      } else if (sides_[k] == kOfItem) {
        std::memcpy(*to, *item, static_cast<size_t>(count) * sizeof(T));
        *item += count;
      } else {
        AddRow<T, false>(*item, *user, count, *to);
        *user += count;
        *item += count;
      }
      *to += count;
    }
  }

  absl::Status CheckSizes(const Tensor& item, const Tensor& user) const {
    bool fits = item.dims() > axis_ && item.dim_size(static_cast<int>(axis_)) == item_width_ &&
                user.dim_size(static_cast<int>(axis_)) == user_width_;
    for (int d = 1; fits && d < item.dims(); ++d) fits = d == axis_ || item.dim_size(d) == user.dim_size(d);
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(name() + ": item " + ShapeText(item) + " and user " + ShapeText(user) +
                                      " must have " + std::to_string(item_width_) + " and " +
                                      std::to_string(user_width_) + " entries on axis " + std::to_string(axis_) +
                                      " and agree on the others");
  }

  int64_t axis_ = 1;
  std::vector<int64_t> widths_;
  std::vector<int64_t> sides_;
  int64_t user_width_ = 0;
  int64_t item_width_ = 0;
  int64_t width_ = 0;
};

#define TFCTR_REGISTER_SPLIT_KERNELS(type)                                                                    \
  REGISTER_KERNEL_BUILDER(Name("TfctrAddUserRows").Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"),  \
                          AddUserRowsOp<type>);                                                               \
  REGISTER_KERNEL_BUILDER(Name("TfctrJoinUserRows").Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"), \
                          JoinUserRowsOp<type>)

TFCTR_REGISTER_SPLIT_KERNELS(float);
TFCTR_REGISTER_SPLIT_KERNELS(double);
TFCTR_REGISTER_SPLIT_KERNELS(Eigen::half);
TFCTR_REGISTER_SPLIT_KERNELS(Eigen::bfloat16);
#undef TFCTR_REGISTER_SPLIT_KERNELS

}  // namespace
}  // namespace tfctr
