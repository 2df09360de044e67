// TfctrStoreOpen and TfctrStoreOverlay: which files a store has, and which overlays lie over them; see
// store_resource.h.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/kernels/store_resource.h"
#include "tfctr/core/storage/store.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;

constexpr const char* kKinds[] = {"table", "vocab", "blob", "hash", "overlay"};

// Why overlays of a store could not be had, in front of what the storage library says.
absl::Status Named(const std::string& what, Status status) {
  status.message = what + ": " + status.message;
  return ToTensorFlow(status);
}

// A new version of table or hash file `base`: with that overlay, or none (null).
absl::Status Serve(const OpenedFiles& files, size_t base, std::shared_ptr<const OverlayFile> overlay,
                   std::shared_ptr<const ServedTable>* served) {
  Result<std::shared_ptr<const ServedTable>> made =
      files.tables[base] ? ServedTable::Make(files.tables[base], std::move(overlay), files.memory)
                         : ServedTable::Make(files.hashes[base], std::move(overlay), files.memory);
  if (!made.ok()) return Named(absl::StrCat("bundle file ", base), made.status());
  *served = made.Take();
  return absl::OkStatus();
}

class StoreOpenOp : public OpKernel {
 public:
  explicit StoreOpenOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("kinds", &kinds_));
    OP_REQUIRES_OK(context, context->GetAttr("fingerprints", &fingerprints_));
    OP_REQUIRES_OK(context, context->GetAttr("bases", &bases_));
    OP_REQUIRES(context, kinds_.size() == fingerprints_.size(),
                absl::InvalidArgumentError(absl::StrCat("TfctrStoreOpen: ", kinds_.size(), " kinds but ",
                                                        fingerprints_.size(), " fingerprints")));
    size_t overlays = 0;
    for (const std::string& kind : kinds_) {
      bool known = false;
      for (const char* one : kKinds) known |= kind == one;
      OP_REQUIRES(context, known,
                  absl::InvalidArgumentError(absl::StrCat("TfctrStoreOpen: kind '", kind,
                                                          "' is neither 'table' nor 'vocab' nor 'blob' nor 'hash' nor "
                                                          "'overlay'")));
      overlays += kind == "overlay" ? 1 : 0;
    }
    OP_REQUIRES(context, overlays == bases_.size(),
                absl::InvalidArgumentError(
                    absl::StrCat("TfctrStoreOpen: ", overlays, " overlays but ", bases_.size(), " bases")));
    std::vector<bool> taken(kinds_.size(), false);
    for (const int64_t base : bases_) {
      const bool fits = base >= 0 && base < static_cast<int64_t>(kinds_.size()) &&
                        (kinds_[base] == "table" || kinds_[base] == "hash") && !taken[base];
      OP_REQUIRES(context, fits,
                  absl::InvalidArgumentError(
                      absl::StrCat("TfctrStoreOpen: base ", base, " is no table or hash file, or has two overlays")));
      taken[base] = true;
    }
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<StoreResource> resource;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &resource));
    const Tensor& filenames = context->input(1);
    OP_REQUIRES(
        context, filenames.dims() == 1 && filenames.NumElements() == static_cast<int64_t>(kinds_.size()),
        absl::InvalidArgumentError(absl::StrCat("TfctrStoreOpen: filenames has shape ", filenames.shape().DebugString(),
                                                ", expected [", kinds_.size(), "]: one for each kind")));
    const Result<TableMemory> memory = DefaultTableMemory();
    OP_REQUIRES_OK(context, ToTensorFlow(memory.status()));
    auto files = std::make_shared<OpenedFiles>(kinds_.size(), memory.value());
    for (size_t i = 0; i < kinds_.size(); ++i) {
      OP_REQUIRES_OK(context, Open(filenames.flat<tstring>()(i), i, files.get()));
    }
    OP_REQUIRES_OK(context, ServeAll(files.get()));
    resource->Replace(std::move(files));
  }

 private:
  absl::Status Open(const std::string& path, size_t i, OpenedFiles* files) const {
    std::string fingerprint;
    if (kinds_[i] == "table") {
      TF_RETURN_IF_ERROR(Take(Store::Global().Table(path), i, &files->tables[i], &fingerprint));
    } else if (kinds_[i] == "vocab") {
      TF_RETURN_IF_ERROR(Take(Store::Global().Vocab(path), i, &files->vocabs[i], &fingerprint));
    } else if (kinds_[i] == "blob") {
      TF_RETURN_IF_ERROR(Take(Store::Global().Blob(path), i, &files->blobs[i], &fingerprint));
    } else if (kinds_[i] == "hash") {
      TF_RETURN_IF_ERROR(Take(Store::Global().Hash(path), i, &files->hashes[i], &fingerprint));
    } else {
      TF_RETURN_IF_ERROR(Take(Store::Global().Overlay(path), i, &files->overlays[i], &fingerprint));
    }
    if (!fingerprints_[i].empty() && fingerprint != fingerprints_[i]) {
      return absl::DataLossError(absl::StrCat("bundle file ", i, " (", kinds_[i], ") '", path, "' has the fingerprint ",
                                              fingerprint, ", the bundle expects ", fingerprints_[i],
                                              ": the file was exchanged or belongs to another bundle"));
    }
    return absl::OkStatus();
  }

  template <typename File>
  absl::Status Take(Result<std::shared_ptr<const File>> opened, size_t i, std::shared_ptr<const File>* file,
                    std::string* fingerprint) const {
    if (!opened.ok()) return Named(absl::StrCat("bundle file ", i, " (expected: a ", kinds_[i], ")"), opened.status());
    *file = opened.Take();
    *fingerprint = (*file)->fingerprint();
    return absl::OkStatus();
  }

  absl::Status ServeAll(OpenedFiles* files) const {
    std::vector<std::shared_ptr<const OverlayFile>> over(kinds_.size());
    size_t next = 0;
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (files->overlays[i]) over[bases_[next++]] = files->overlays[i];
    }
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (files->CanServe(i)) TF_RETURN_IF_ERROR(Serve(*files, i, over[i], &files->served[i]));
    }
    return absl::OkStatus();
  }

  std::vector<std::string> kinds_;
  std::vector<std::string> fingerprints_;
  std::vector<int64_t> bases_;
};

class StoreOverlayOp : public OpKernel {
 public:
  explicit StoreOverlayOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<StoreResource> resource;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &resource));
    const Tensor& indices = context->input(1);
    const Tensor& filenames = context->input(2);
    OP_REQUIRES(context, indices.dims() == 1 && filenames.dims() == 1 && indices.shape() == filenames.shape(),
                absl::InvalidArgumentError(
                    absl::StrCat("TfctrStoreOverlay: indices has shape ", indices.shape().DebugString(), ", filenames ",
                                 filenames.shape().DebugString(), ", expected two equal vectors")));
    OP_REQUIRES_OK(context, resource->Update([&](const OpenedFiles& now, std::shared_ptr<const OpenedFiles>* next) {
      return WithOverlays(now, indices, filenames, next);
    }));
  }

 private:
  // All or none: `now` stays as it is.
  static absl::Status WithOverlays(const OpenedFiles& now, const Tensor& indices, const Tensor& filenames,
                                   std::shared_ptr<const OpenedFiles>* next) {
    std::vector<std::shared_ptr<const OverlayFile>> over(now.size());
    for (int64_t k = 0; k < indices.NumElements(); ++k) {
      const int64_t index = indices.flat<int64_t>()(k);
      if (index < 0 || index >= static_cast<int64_t>(now.size()) || !now.CanServe(index) || over[index]) {
        return absl::InvalidArgumentError(absl::StrCat("TfctrStoreOverlay: file ", index,
                                                       " of the store is no table or hash file, or is named twice"));
      }
      Result<std::shared_ptr<const OverlayFile>> opened = Store::Global().Overlay(filenames.flat<tstring>()(k));
      if (!opened.ok()) return Named(absl::StrCat("overlay of bundle file ", index), opened.status());
      over[index] = opened.Take();
    }
    auto made = std::make_shared<OpenedFiles>(now);
    for (size_t i = 0; i < now.size(); ++i) {
      if (!now.CanServe(i) || now.served[i]->overlay_file() == over[i]) continue;
      TF_RETURN_IF_ERROR(Serve(now, i, over[i], &made->served[i]));
      if (now.dense_reads->Has(i)) TF_RETURN_IF_ERROR(ToTensorFlow(made->served[i]->Dense().status()));
    }
    *next = std::move(made);
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("TfctrStoreOpen").Device(tensorflow::DEVICE_CPU), StoreOpenOp);
REGISTER_KERNEL_BUILDER(Name("TfctrStoreOverlay").Device(tensorflow::DEVICE_CPU), StoreOverlayOp);

}  // namespace
}  // namespace tfctr
