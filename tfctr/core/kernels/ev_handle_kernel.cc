// TfctrEvHandle: makes the table where its name has none yet. It looks the resource up in every run: one that was
// deleted is made again, empty.
#include <string>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tfctr/core/kernels/ev_resource.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class EvHandleOp : public OpKernel {
 public:
  explicit EvHandleOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("config", &config_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::ContainerInfo info;
    OP_REQUIRES_OK(context, info.Init(context->resource_manager(), def(), /*use_node_name_as_default=*/true));
    const tensorflow::ResourceHandle handle =
        tensorflow::MakeResourceHandle<EvResource>(context, info.container(), info.name());
    tensorflow::core::RefCountPtr<EvResource> ev;
    OP_REQUIRES_OK(context,
                   tensorflow::LookupOrCreateResource<EvResource>(context, handle, &ev, [this](EvResource** created) {
                     return EvResource::Create(config_, created);
                   }));
    OP_REQUIRES(context, ev->config_text() == config_,
                absl::InvalidArgumentError(
                    absl::StrCat("there is an embedding variable under the shared name '", info.name(),
                                 "' already, with another configuration: ", ev->config_text(), ", wanted: ", config_)));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    output->scalar<tensorflow::ResourceHandle>()() = handle;
  }
  bool IsExpensive() override { return false; }

 private:
  std::string config_;
};

REGISTER_KERNEL_BUILDER(Name("TfctrEvHandle").Device(tensorflow::DEVICE_CPU), EvHandleOp);

}  // namespace
}  // namespace tfctr
