// Kernels of the store ops; see store_resource.h for the resource and docs/bundle_format.md for the files.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tfctr/core/kernels/store_resource.h"
#include "tfctr/core/storage/store.h"

namespace tfctr {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

struct TypePair {
  DType ours;
  DataType theirs;
};
constexpr TypePair kTypes[] = {
    {DType::kFloat32, tensorflow::DT_FLOAT},     {DType::kFloat16, tensorflow::DT_HALF},
    {DType::kBFloat16, tensorflow::DT_BFLOAT16}, {DType::kFloat64, tensorflow::DT_DOUBLE},
    {DType::kInt32, tensorflow::DT_INT32},       {DType::kInt64, tensorflow::DT_INT64},
    {DType::kUInt8, tensorflow::DT_UINT8},       {DType::kInt8, tensorflow::DT_INT8},
    {DType::kBool, tensorflow::DT_BOOL},         {DType::kInt16, tensorflow::DT_INT16},
    {DType::kUInt16, tensorflow::DT_UINT16},     {DType::kUInt32, tensorflow::DT_UINT32},
    {DType::kUInt64, tensorflow::DT_UINT64},
};

absl::Status NoSuchFile(const OpenedFiles& files, int64_t index, const char* wanted) {
  const int64_t count = static_cast<int64_t>(files.tables.size());
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(absl::StrCat("file ", index, " of the store, a ", wanted,
                                                   ", was asked for, but only ", count, " files are open"));
  }
  const std::string& path = files.tables[index]   ? files.tables[index]->path()
                            : files.vocabs[index] ? files.vocabs[index]->path()
                                                  : files.blobs[index]->path();
  return absl::InvalidArgumentError(
      absl::StrCat("file ", index, " of the store, '", path, "', is not a ", wanted, " file"));
}

class StoreOp : public OpKernel {
 public:
  explicit StoreOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ready_) OP_REQUIRES_OK(context, Prepare(context));
    context->set_output(0, handle_);
  }
  bool IsExpensive() override { return false; }

 private:
  absl::Status Prepare(OpKernelContext* context) {
    tensorflow::ContainerInfo info;
    TF_RETURN_IF_ERROR(info.Init(context->resource_manager(), def(), /*use_node_name_as_default=*/true));
    const tensorflow::ResourceHandle handle =
        tensorflow::MakeResourceHandle<StoreResource>(context, info.container(), info.name());
    tensorflow::core::RefCountPtr<StoreResource> resource;
    TF_RETURN_IF_ERROR(
        tensorflow::LookupOrCreateResource<StoreResource>(context, handle, &resource, [&info](StoreResource** created) {
          *created = new StoreResource(info.name());
          return absl::OkStatus();
        }));
    tensorflow::AllocatorAttributes on_host;
    on_host.set_on_host(true);
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_RESOURCE, TensorShape({}), &handle_, on_host));
    handle_.scalar<tensorflow::ResourceHandle>()() = handle;
    ready_ = true;
    return absl::OkStatus();
  }

  std::mutex mutex_;
  bool ready_ = false;
  Tensor handle_;
};

class StoreOpenOp : public OpKernel {
 public:
  explicit StoreOpenOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("kinds", &kinds_));
    OP_REQUIRES_OK(context, context->GetAttr("fingerprints", &fingerprints_));
    OP_REQUIRES(context, kinds_.size() == fingerprints_.size(),
                absl::InvalidArgumentError(absl::StrCat("TfctrStoreOpen: ", kinds_.size(), " kinds but ",
                                                        fingerprints_.size(), " fingerprints")));
    for (const std::string& kind : kinds_) {
      OP_REQUIRES(context, kind == "table" || kind == "vocab" || kind == "blob",
                  absl::InvalidArgumentError(
                      absl::StrCat("TfctrStoreOpen: kind '", kind, "' is neither 'table' nor 'vocab' nor 'blob'")));
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
    auto files = std::make_shared<OpenedFiles>();
    files->tables.resize(kinds_.size());
    files->vocabs.resize(kinds_.size());
    files->blobs.resize(kinds_.size());
    for (size_t i = 0; i < kinds_.size(); ++i) {
      OP_REQUIRES_OK(context, Open(filenames.flat<tstring>()(i), i, files.get()));
    }
    resource->Replace(std::move(files));
  }

 private:
  absl::Status Open(const std::string& path, size_t i, OpenedFiles* files) const {
    std::string fingerprint;
    if (kinds_[i] == "table") {
      TF_RETURN_IF_ERROR(Take(Store::Global().Table(path), i, &files->tables[i], &fingerprint));
    } else if (kinds_[i] == "vocab") {
      TF_RETURN_IF_ERROR(Take(Store::Global().Vocab(path), i, &files->vocabs[i], &fingerprint));
    } else {
      TF_RETURN_IF_ERROR(Take(Store::Global().Blob(path), i, &files->blobs[i], &fingerprint));
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
    if (!opened.ok()) {
      Status status = opened.status();
      status.message = absl::StrCat("bundle file ", i, " (expected: a ", kinds_[i], "): ", status.message);
      return ToTensorFlow(status);
    }
    *file = opened.Take();
    *fingerprint = (*file)->fingerprint();
    return absl::OkStatus();
  }

  std::vector<std::string> kinds_;
  std::vector<std::string> fingerprints_;
};

// A tensor's memory that lies in a mapped table file. OwnsMemory() is false, so that no kernel forwards it as an
// output buffer to write into: the pages are read-only.
class MappedBuffer : public tensorflow::TensorBuffer {
 public:
  explicit MappedBuffer(std::shared_ptr<const TableFile> table)
      : TensorBuffer(const_cast<uint8_t*>(table->data())), table_(std::move(table)) {}
  size_t size() const override { return table_->bytes(); }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(size()));
    proto->set_allocator_name("tfctr_mapped_file");
  }

 private:
  const std::shared_ptr<const TableFile> table_;
};

class TableOp : public OpKernel {
 public:
  explicit TableOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("shape", &shape_));
    OP_REQUIRES(context, FromTensorFlow(dtype_) != DType::kInvalid,
                absl::InvalidArgumentError(
                    absl::StrCat("TfctrTable: tables cannot hold ", tensorflow::DataTypeString(dtype_))));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const OpenedFiles> files;
    OP_REQUIRES_OK(context, GetOpenedFiles(context, 0, &files));
    const TableFile* table = nullptr;
    OP_REQUIRES_OK(context, TableAt(*files, index_, &table));
    const absl::Span<const int64_t> dims(table->shape());
    const bool same_shape = absl::MakeConstSpan(shape_.dim_sizes()) == dims;
    OP_REQUIRES(
        context, ToTensorFlow(table->dtype()) == dtype_ && same_shape,
        absl::InvalidArgumentError(absl::StrCat(
            "table '", table->name(), "' in '", table->path(), "' is ", DTypeName(table->dtype()), " [",
            absl::StrJoin(dims, ","), "], expected ", tensorflow::DataTypeString(dtype_), " ", shape_.DebugString())));
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(new MappedBuffer(files->tables[index_]));
    context->set_output(0, Tensor(dtype_, shape_, std::move(buffer)));
  }
  bool IsExpensive() override { return false; }

 private:
  int64_t index_ = 0;
  DataType dtype_ = tensorflow::DT_INVALID;
  TensorShape shape_;
};

class VocabFindOp : public OpKernel {
 public:
  explicit VocabFindOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const OpenedFiles> files;
    OP_REQUIRES_OK(context, GetOpenedFiles(context, 0, &files));
    const VocabFile* vocab = nullptr;
    OP_REQUIRES_OK(context, VocabAt(*files, index_, &vocab));
    const Tensor& keys = context->input(1);
    OP_REQUIRES(context, tensorflow::TensorShapeUtils::IsScalar(context->input(2).shape()),
                absl::InvalidArgumentError(absl::StrCat("TfctrVocabFind: default_value must be a scalar, got shape ",
                                                        context->input(2).shape().DebugString())));
    const KeyKind kind = keys.dtype() == tensorflow::DT_STRING ? KeyKind::kString : KeyKind::kInt64;
    OP_REQUIRES(context, kind == vocab->key_kind(),
                absl::InvalidArgumentError(absl::StrCat(
                    "vocabulary '", vocab->name(), "' in '", vocab->path(), "' has ", KeyKindName(vocab->key_kind()),
                    " keys, but the keys given are ", tensorflow::DataTypeString(keys.dtype()))));
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, keys.shape(), &values));
    const int64_t fallback = context->input(2).scalar<int64_t>()();
    int64_t* out = values->flat<int64_t>().data();
    if (keys.dtype() == tensorflow::DT_STRING) {
      const tstring* in = keys.flat<tstring>().data();
      Find(context, *vocab, keys.NumElements(), fallback, out,
           [in](int64_t i) { return std::string_view(in[i].data(), in[i].size()); });
    } else if (keys.dtype() == tensorflow::DT_INT64) {
      const int64_t* in = keys.flat<int64_t>().data();
      Find(context, *vocab, keys.NumElements(), fallback, out, [in](int64_t i) { return in[i]; });
    } else {
      const int32_t* in = keys.flat<int32_t>().data();
      Find(context, *vocab, keys.NumElements(), fallback, out, [in](int64_t i) { return int64_t{in[i]}; });
    }
  }

 private:
  template <typename GetKey>
  static void Find(OpKernelContext* context, const VocabFile& vocab, int64_t n, int64_t fallback, int64_t* out,
                   const GetKey& key) {
    constexpr int64_t kCyclesPerKey = 150;
    const auto* workers = context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(workers->num_threads, workers->workers, n, kCyclesPerKey, [&](int64_t begin, int64_t end) {
      vocab.FindEach(
          end - begin, [&](int64_t i) { return key(begin + i); },
          [&](int64_t i, int64_t value) { out[begin + i] = value; },
          [&](int64_t i, const auto&) { out[begin + i] = fallback; });
    });
  }

  int64_t index_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfctrStore").Device(tensorflow::DEVICE_CPU), StoreOp);
REGISTER_KERNEL_BUILDER(Name("TfctrStoreOpen").Device(tensorflow::DEVICE_CPU), StoreOpenOp);
REGISTER_KERNEL_BUILDER(Name("TfctrTable").Device(tensorflow::DEVICE_CPU), TableOp);
REGISTER_KERNEL_BUILDER(Name("TfctrVocabFind").Device(tensorflow::DEVICE_CPU), VocabFindOp);

}  // namespace

std::string StoreResource::DebugString() const {
  const std::shared_ptr<const OpenedFiles> files = Get();
  return absl::StrCat("tfctr store '", name_,
                      "': ", files ? absl::StrCat(files->tables.size(), " files") : std::string("not opened"));
}

absl::Status GetOpenedFiles(OpKernelContext* context, int input, std::shared_ptr<const OpenedFiles>* files) {
  tensorflow::core::RefCountPtr<StoreResource> resource;
  TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, input), &resource));
  *files = resource->Get();
  if (*files == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the files of store '", resource->name(),
                     "' were never opened: the model's init op (TfctrStoreOpen) was not run in this session"));
  }
  return absl::OkStatus();
}

absl::Status TableAt(const OpenedFiles& files, int64_t index, const TableFile** table) {
  if (index < 0 || index >= static_cast<int64_t>(files.tables.size()) || !files.tables[index]) {
    return NoSuchFile(files, index, "table");
  }
  *table = files.tables[index].get();
  return absl::OkStatus();
}

absl::Status VocabAt(const OpenedFiles& files, int64_t index, const VocabFile** vocab) {
  if (index < 0 || index >= static_cast<int64_t>(files.vocabs.size()) || !files.vocabs[index]) {
    return NoSuchFile(files, index, "vocab");
  }
  *vocab = files.vocabs[index].get();
  return absl::OkStatus();
}

absl::Status BlobAt(const OpenedFiles& files, int64_t index, std::shared_ptr<const BlobFile>* blob) {
  if (index < 0 || index >= static_cast<int64_t>(files.blobs.size()) || !files.blobs[index]) {
    return NoSuchFile(files, index, "blob");
  }
  *blob = files.blobs[index];
  return absl::OkStatus();
}

DataType ToTensorFlow(DType dtype) {
  for (const TypePair& pair : kTypes) {
    if (pair.ours == dtype) return pair.theirs;
  }
  return tensorflow::DT_INVALID;
}

DType FromTensorFlow(DataType dtype) {
  for (const TypePair& pair : kTypes) {
    if (pair.theirs == dtype) return pair.ours;
  }
  return DType::kInvalid;
}

absl::Status ToTensorFlow(const Status& status) {
  switch (status.code) {
    case Code::kOk:
      return absl::OkStatus();
    case Code::kInvalid:
      return absl::InvalidArgumentError(status.message);
    case Code::kNotFound:
      return absl::NotFoundError(status.message);
    case Code::kCorrupt:
      return absl::DataLossError(status.message);
    case Code::kIo:
      return absl::UnavailableError(status.message);
    case Code::kNoSpace:
      return absl::ResourceExhaustedError(status.message);
  }
  return absl::InternalError(status.message);
}

}  // namespace tfctr
