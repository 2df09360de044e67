// Kernel of TfctrUnpack. Thread-safe (no state after construction); cost: one small allocation per output.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tfctr/core/kernels/unpack_slices.h"
#include "tfctr/core/lookup/packed_layout.h"
#include "tfctr/core/profiling/step_record.h"

namespace tfctr {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

class UnpackOp : public tensorflow::OpKernel {
 public:
  explicit UnpackOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("layout", &layout_));
    OP_REQUIRES_OK(context, context->GetAttr("emit", &emit_));
    OP_REQUIRES_OK(context, context->GetAttr("output_shapes", &shapes_));
    std::vector<tensorflow::DataType> outputs;
    OP_REQUIRES_OK(context, context->GetAttr("Tout", &outputs));
    OP_REQUIRES_OK(context, PackedElementSizes(layout_, &sizes_));
    OP_REQUIRES(context, emit_.size() == outputs.size() && (shapes_.empty() || shapes_.size() == outputs.size()),
                absl::InvalidArgumentError("emit, Tout and output_shapes must have one entry per output"));
    for (size_t k = 0; k < emit_.size(); ++k) {
      const int64_t input = emit_[k];
      OP_REQUIRES(context, input >= 0 && input < static_cast<int64_t>(layout_.size()),
                  absl::InvalidArgumentError("emit names input " + std::to_string(input) + " of " +
                                             std::to_string(layout_.size())));
      OP_REQUIRES(context, layout_[static_cast<size_t>(input)] == outputs[k],
                  absl::InvalidArgumentError("input " + std::to_string(input) + " has type " +
                                             tensorflow::DataTypeString(layout_[static_cast<size_t>(input)]) +
                                             ", not " + tensorflow::DataTypeString(outputs[k])));
    }
  }

  void Compute(OpKernelContext* context) override {
    const StepTimer timer(StepPart::kPack);
    const tensorflow::Tensor& arena = context->input(0);
    const tensorflow::Tensor& strings = context->input(2);
    std::vector<PackedInput> inputs;
    OP_REQUIRES_OK(context, ParsePackedTensors(sizes_, arena, context->input(1), strings, &inputs));
    for (size_t k = 0; k < emit_.size(); ++k) {
      const size_t input = static_cast<size_t>(emit_[k]);
      tensorflow::Tensor out;
      OP_REQUIRES_OK(context, PackedSlice(inputs[input], layout_[input], arena, strings, &out));
      OP_REQUIRES(context, shapes_.empty() || shapes_[k].IsCompatibleWith(out.shape()),
                  absl::InvalidArgumentError("packed input " + std::to_string(input) + " has shape " +
                                             out.shape().DebugString() + ", expected " + shapes_[k].DebugString()));
      context->set_output(static_cast<int>(k), out);
    }
  }

 private:
  std::vector<tensorflow::DataType> layout_;
  std::vector<uint32_t> sizes_;
  std::vector<int64_t> emit_;
  std::vector<tensorflow::PartialTensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(Name("TfctrUnpack").Device(tensorflow::DEVICE_CPU), UnpackOp);

}  // namespace
}  // namespace tfctr
