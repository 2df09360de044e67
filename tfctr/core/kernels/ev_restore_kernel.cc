// TfctrEvRestore and TfctrEvReplace: tables that take the place of others.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tfctr/core/kernels/ev_bundle.h"
#include "tfctr/core/kernels/ev_resource.h"
#include "tfctr/core/kernels/store_resource.h"

namespace tfctr {
namespace {

using tensorflow::BundleReader;
using tensorflow::Env;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

class EvRestoreOp : public OpKernel {
 public:
  explicit EvRestoreOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &count_));
    OP_REQUIRES_OK(context, GetPlaces(context, count_, &places_));
    OP_REQUIRES_OK(context, context->GetAttr("slots", &parts_.slots));
    OP_REQUIRES_OK(context, context->GetAttr("counters", &parts_.counters));
    OP_REQUIRES_OK(context, context->GetAttr("steps", &parts_.steps));
  }

  void Compute(OpKernelContext* context) override {
    tstring prefix;
    OP_REQUIRES_OK(context, GetScalar(context, 0, "prefix", &prefix));
    const Tensor& steps = context->input(1);
    OP_REQUIRES(context, steps.dims() == 1 && steps.NumElements() == count_,
                absl::InvalidArgumentError(absl::StrCat(type_string(), ": step has shape ", steps.shape().DebugString(),
                                                        ", expected [", count_, "]")));
    BundleReader reader(Env::Default(), prefix);
    OP_REQUIRES(context, reader.status().ok(),
                absl::Status(reader.status().code(),
                             absl::StrCat("checkpoint '", std::string(prefix), "': ", reader.status().message())));
    std::vector<tensorflow::core::RefCountPtr<EvResource>> variables(static_cast<size_t>(count_));
    std::vector<std::shared_ptr<EmbeddingTable>> tables(variables.size());
    for (int i = 0; i < count_; ++i) OP_REQUIRES_OK(context, GetEv(context, 2 + i, &variables[i]));
    for (size_t i = 0; i < variables.size(); ++i) {
      OP_REQUIRES_OK(context, LoadTable(&reader, prefix, places_[i], variables[i]->config(), parts_,
                                        variables[i]->NowAt(steps.vec<int64_t>()(static_cast<int64_t>(i))),
                                        OnThreads(context), &tables[i]));
    }
    for (size_t i = 0; i < variables.size(); ++i) variables[i]->Swap(std::move(tables[i]));
  }

 private:
  int count_ = 0;
  std::vector<TablePlace> places_;
  CheckpointParts parts_;
};

class EvReplaceOp : public OpKernel {
 public:
  explicit EvReplaceOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<EvResource> variable;
    tensorflow::core::RefCountPtr<EvResource> source;
    OP_REQUIRES_OK(context, GetEv(context, 0, &variable));
    OP_REQUIRES_OK(context, GetEv(context, 1, &source));
    OP_REQUIRES(context, variable.get() != source.get(),
                absl::InvalidArgumentError(absl::StrCat("TfctrEvReplace: embedding variable '", variable->name(),
                                                        "' is both handle and source")));
    OP_REQUIRES(context, variable->config_text() == source->config_text(),
                absl::InvalidArgumentError(absl::StrCat(
                    "TfctrEvReplace: embedding variable '", variable->name(), "' has the configuration ",
                    variable->config_text(), ", the source '", source->name(), "' has ", source->config_text())));
    Result<std::shared_ptr<EmbeddingTable>> empty = MakeTable(source->config());
    OP_REQUIRES(context, empty.ok(), ToTensorFlow(empty.status()));
    variable->Swap(source->table());
    source->Swap(empty.Take());
  }
};

REGISTER_KERNEL_BUILDER(Name("TfctrEvRestore").Device(tensorflow::DEVICE_CPU), EvRestoreOp);
REGISTER_KERNEL_BUILDER(Name("TfctrEvReplace").Device(tensorflow::DEVICE_CPU), EvReplaceOp);

}  // namespace
}  // namespace tfctr
