// TfctrRowIds (tfctr/core/ops/row_ids_op.cc).
#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class RowIdsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& splits = context->input(0);
    const Tensor& keys = context->input(1);
    OP_REQUIRES(context, splits.dims() == 1 && splits.NumElements() >= 1,
                absl::InvalidArgumentError(
                    absl::StrCat("row_splits has shape ", splits.shape().DebugString(), ", expected [rows + 1]")));
    OP_REQUIRES(context, keys.dims() == 1,
                absl::InvalidArgumentError(
                    absl::StrCat("keys has shape ", keys.shape().DebugString(), ", expected a vector to combine")));
    const auto at = splits.flat<int64_t>();
    const int64_t rows = splits.NumElements() - 1;
    const int64_t count = keys.NumElements();
    OP_REQUIRES(context, at(0) == 0 && at(rows) == count,
                absl::InvalidArgumentError(absl::StrCat("row_splits goes from ", at(0), " to ", at(rows),
                                                        ", expected 0 to the number of keys, ", count)));
    for (int64_t r = 0; r < rows; ++r) {
      OP_REQUIRES(
          context, at(r) <= at(r + 1),
          absl::InvalidArgumentError(absl::StrCat("row_splits falls from ", at(r), " to ", at(r + 1), " at row ", r)));
    }
    Tensor* ids = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, keys.shape(), &ids));
    int64_t* out = ids->flat<int64_t>().data();
    for (int64_t r = 0; r < rows; ++r) std::fill(out + at(r), out + at(r + 1), r);
  }
};

REGISTER_KERNEL_BUILDER(Name("TfctrRowIds").Device(tensorflow::DEVICE_CPU), RowIdsOp);

}  // namespace
}  // namespace tfctr
