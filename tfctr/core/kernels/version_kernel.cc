// Kernel of TfctrVersion. Thread-safe, stateless; two scalar strings per run. CMake defines both versions.
#include "tensorflow/core/framework/op_kernel.h"

namespace tfctr {
namespace {

class VersionOp : public tensorflow::OpKernel {
 public:
  explicit VersionOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(tensorflow::OpKernelContext* context) override {
    const char* versions[] = {TFCTR_VERSION, TFCTR_TENSORFLOW_VERSION};
    for (int i = 0; i < 2; ++i) {
      tensorflow::Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, tensorflow::TensorShape({}), &output));
      output->scalar<tensorflow::tstring>()() = versions[i];
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("TfctrVersion").Device(tensorflow::DEVICE_CPU), VersionOp);

}  // namespace
}  // namespace tfctr
