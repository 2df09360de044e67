// Kernel of TfctrDenseEngine: opens the engine with the first run, hands TensorFlow's memory over, in and out.
//
// Thread-safety: Compute may run concurrently; runs share no lock once the engine is open. Cost beside the engine's
// own: well under a microsecond and the allocation of the outputs. The engine runs on the caller's thread.
#include <dlfcn.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/engines/engine.h"
#include "tfctr/core/kernels/store_resource.h"
#include "tfctr/core/profiling/step_record.h"

namespace tfctr {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// A device or a library that failed is Internal: TensorFlow takes Unavailable for trouble with a network.
absl::Status OfEngine(const Status& status) {
  return status.code == Code::kIo ? absl::InternalError(status.message) : ToTensorFlow(status);
}

// Outputs of a run as the op's outputs.
class TensorSink : public OutputSink {
 public:
  explicit TensorSink(OpKernelContext* context) : context_(context) {}

  Result<void*> Allocate(size_t index, const std::vector<int64_t>& dims) override {
    TensorShape shape;
    absl::Status status = TensorShape::BuildTensorShape(dims, &shape);
    Tensor* tensor = nullptr;
    if (status.ok()) status = context_->allocate_output(static_cast<int>(index), shape, &tensor);
    if (!status.ok()) return Status::Invalid(std::string(status.message()));
    return tensor->data();
  }

 private:
  OpKernelContext* const context_;
};

class DenseEngineOp : public OpKernel {
 public:
  explicit DenseEngineOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("provider", &spec_.provider));
    OP_REQUIRES_OK(context, context->GetAttr("precision", &spec_.precision));
    OP_REQUIRES_OK(context, context->GetAttr("options", &spec_.options));
    OP_REQUIRES_OK(context, context->GetAttr("threads", &spec_.threads));
    OP_REQUIRES_OK(context, context->GetAttr("label", &spec_.label));
    OP_REQUIRES_OK(context, context->GetAttr("files", &files_));
    OP_REQUIRES_OK(context, context->GetAttr("roles", &roles_));
    if (spec_.label.empty()) spec_.label = name();
    OP_REQUIRES(context, files_.size() == roles_.size(),
                absl::InvalidArgumentError(spec_.Named() + ": " + std::to_string(files_.size()) + " files, but " +
                                           std::to_string(roles_.size()) + " roles"));
    OP_REQUIRES_OK(context, Tensors(context, /*input=*/true));
    OP_REQUIRES_OK(context, Tensors(context, /*input=*/false));
  }

  void Compute(OpKernelContext* context) override {
    const StepTimer timer(StepPart::kDense);
    std::shared_ptr<const Opened> opened;
    OP_REQUIRES_OK(context, GetOpened(context, &opened));
    std::vector<InputView> views(spec_.inputs.size());
    // The dimensions of a TensorShape are packed; these are their copies.
    std::vector<int64_t> dims;
    int rank = 0;
    for (size_t i = 0; i < views.size(); ++i) rank += context->input(static_cast<int>(i) + 1).dims();
    dims.reserve(static_cast<size_t>(rank));
    for (size_t i = 0; i < views.size(); ++i) {
      const Tensor& tensor = context->input(static_cast<int>(i) + 1);
      views[i] = {FromTensorFlow(tensor.dtype()), tensor.data(), dims.data() + dims.size(), tensor.dims()};
      for (int d = 0; d < tensor.dims(); ++d) dims.push_back(tensor.dim_size(d));
    }
    TensorSink sink(context);
    OP_REQUIRES_OK(context, OfEngine(opened->engine->Run(views, &sink, &spec_.label)));
  }

 private:
  // The engine over one set of open files.
  struct Opened {
    std::shared_ptr<const OpenedFiles> files;
    std::shared_ptr<Engine> engine;
  };

  absl::Status Tensors(OpKernelConstruction* context, bool input) {
    const std::string kind = input ? "input" : "output";
    std::vector<std::string> names;
    std::vector<std::string> dims;
    std::vector<DataType> types;
    TF_RETURN_IF_ERROR(context->GetAttr(kind + "_names", &names));
    TF_RETURN_IF_ERROR(context->GetAttr(kind + "_dims", &dims));
    TF_RETURN_IF_ERROR(context->GetAttr(input ? "Tin" : "Tout", &types));
    if (names.size() != types.size() || dims.size() != types.size()) {
      return absl::InvalidArgumentError(spec_.Named() + ": " + std::to_string(types.size()) + " " + kind + "s, but " +
                                        std::to_string(names.size()) + " names and " + std::to_string(dims.size()) +
                                        " shapes of them");
    }
    for (size_t k = 0; k < types.size(); ++k) {
      const DType dtype = FromTensorFlow(types[k]);
      const Status added = input ? spec_.AddInput(names[k], dtype, dims[k]) : spec_.AddOutput(names[k], dtype, dims[k]);
      if (!added.ok()) return absl::InvalidArgumentError(spec_.Named() + ": " + added.message);
    }
    return absl::OkStatus();
  }

  absl::Status GetOpened(OpKernelContext* context, std::shared_ptr<const Opened>* opened) {
    std::shared_ptr<const OpenedFiles> files;
    TF_RETURN_IF_ERROR(GetOpenedFiles(context, 0, &files));
    *opened = std::atomic_load(&opened_);
    if (*opened != nullptr && (*opened)->files == files) return absl::OkStatus();
    // Held while the engine is opened: others of this op could do nothing but wait.
    std::lock_guard<std::mutex> lock(mutex_);
    *opened = std::atomic_load(&opened_);
    if (*opened != nullptr && (*opened)->files == files) return absl::OkStatus();
    EngineSpec spec = spec_;
    for (size_t k = 0; k < files_.size(); ++k) {
      std::shared_ptr<const BlobFile> blob;
      const absl::Status found = BlobAt(*files, files_[k], &blob);
      if (!found.ok()) {
        return absl::Status(found.code(),
                            spec_.Named() + ": role '" + roles_[k] + "': " + std::string(found.message()));
      }
      spec.files.push_back({roles_[k], std::move(blob)});
    }
    Result<std::shared_ptr<Engine>> engine = OpenEngine(spec);
    if (!engine.ok()) {
      const absl::Status status = OfEngine(engine.status());
      if (!absl::IsInvalidArgument(status)) return status;
      // Not the request's fault.
      return absl::FailedPreconditionError(status.message());
    }
    *opened = std::make_shared<Opened>(Opened{std::move(files), engine.Take()});
    std::atomic_store(&opened_, *opened);
    return absl::OkStatus();
  }

  EngineSpec spec_;  // without files
  std::vector<int64_t> files_;
  std::vector<std::string> roles_;
  std::mutex mutex_;
  std::shared_ptr<const Opened> opened_;  // by std::atomic_load and std::atomic_store only
};

REGISTER_KERNEL_BUILDER(Name("TfctrDenseEngine").Device(tensorflow::DEVICE_CPU), DenseEngineOp);

// A process that knows the op library alone (TensorFlow Serving) finds libtfctr_<provider>.so beside it. Python loads
// these itself, after checking versions.
Status LoadBesideThis(const std::string& provider) {
  Dl_info here;
  if (dladdr(reinterpret_cast<const void*>(&LoadBesideThis), &here) == 0 || here.dli_fname == nullptr) {
    return Status::Invalid("the op library's own path is not known");
  }
  const std::string own = here.dli_fname;
  for (const char c : provider) {
    if ((c < 'a' || c > 'z') && c != '_') return Status::Invalid("no provider has this name");
  }
  const std::string path = own.substr(0, own.rfind('/') + 1) + "libtfctr_" + provider + ".so";
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return Status::Invalid(dlerror());
  return Status::Ok();
}

const bool loader_is_set = [] {
  SetProviderLoader(&LoadBesideThis);
  return true;
}();

}  // namespace
}  // namespace tfctr
