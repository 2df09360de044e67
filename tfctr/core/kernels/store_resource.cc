// The resource of a store; what its kernels share.
#include "tfctr/core/kernels/store_resource.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace tfctr {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernelContext;

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
  std::string path;
  const auto look = [&path, index](const auto& kind) {
    if (kind[index]) path = kind[index]->path();
  };
  look(files.tables);
  look(files.vocabs);
  look(files.blobs);
  look(files.hashes);
  look(files.overlays);
  return absl::InvalidArgumentError(
      absl::StrCat("file ", index, " of the store, '", path, "', is not a ", wanted, " file"));
}

// The files that a run reads, in its step container.
class StepFiles : public tensorflow::ResourceBase {
 public:
  explicit StepFiles(std::shared_ptr<const OpenedFiles> files) : files_(std::move(files)) {}
  std::string DebugString() const override { return "tfctr store files of a step"; }
  const std::shared_ptr<const OpenedFiles>& files() const { return files_; }

 private:
  const std::shared_ptr<const OpenedFiles> files_;
};

// How many readers each session has; a session's devices have resource managers of their own.
std::shared_ptr<std::atomic<int64_t>> ReadersOf(const void* resource_manager) {
  static std::mutex* const mutex = new std::mutex();
  static auto* const all = new std::map<const void*, std::weak_ptr<std::atomic<int64_t>>>();
  std::lock_guard<std::mutex> lock(*mutex);
  for (auto it = all->begin(); it != all->end();) {  // forget sessions that are gone
    it = it->second.expired() ? all->erase(it) : std::next(it);
  }
  std::weak_ptr<std::atomic<int64_t>>& entry = (*all)[resource_manager];
  std::shared_ptr<std::atomic<int64_t>> readers = entry.lock();
  if (readers == nullptr) {
    readers = std::make_shared<std::atomic<int64_t>>(0);
    entry = readers;
  }
  return readers;
}

absl::Status NeverOpened(const std::string& store) {
  return absl::FailedPreconditionError(
      absl::StrCat("the files of store '", store,
                   "' were never opened: the model's init op (TfctrStoreOpen) was not run in this session"));
}

}  // namespace

void StoreResource::Replace(std::shared_ptr<const OpenedFiles> files) {
  std::lock_guard<std::mutex> change_lock(change_mutex_);
  std::unique_lock<std::shared_mutex> lock(mutex_);
  files_.swap(files);
  lock.unlock();  // what was there before may be unmapped here
}

absl::Status StoreResource::Update(const Change& change) {
  std::lock_guard<std::mutex> change_lock(change_mutex_);
  const std::shared_ptr<const OpenedFiles> now = Get();
  if (now == nullptr) return NeverOpened(name_);
  std::shared_ptr<const OpenedFiles> next;
  TF_RETURN_IF_ERROR(change(*now, &next));
  std::unique_lock<std::shared_mutex> lock(mutex_);
  files_.swap(next);
  lock.unlock();  // what was there before may be unmapped here
  return absl::OkStatus();
}

StoreReader::StoreReader(tensorflow::OpKernelConstruction* context) : readers_(ReadersOf(context->resource_manager())) {
  readers_->fetch_add(1);
}

StoreReader::~StoreReader() { readers_->fetch_sub(1); }

absl::Status StoreReader::Files(OpKernelContext* context, int input, std::shared_ptr<const OpenedFiles>* files) const {
  // Container 0 is that of eager calls, functions among them: all runs share it, whatever their step, so nothing in it
  // belongs to one run. Sessions count their runs from 1.
  if (readers_->load(std::memory_order_relaxed) < 2 || context->step_container() == nullptr ||
      context->step_container()->StepId() == 0) {
    return GetOpenedFiles(context, input, files);
  }
  const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context, input);
  tensorflow::core::RefCountPtr<StoreResource> resource;
  TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, handle, &resource));
  StepFiles* pinned = nullptr;
  TF_RETURN_IF_ERROR(context->step_container()->LookupOrCreate<StepFiles>(
      context->resource_manager(), absl::StrCat(handle.container(), "/", handle.name()), &pinned,
      [&resource](StepFiles** created) -> absl::Status {
        std::shared_ptr<const OpenedFiles> now = resource->Get();
        if (now == nullptr) return NeverOpened(resource->name());
        *created = new StepFiles(std::move(now));
        return absl::OkStatus();
      }));
  const tensorflow::core::RefCountPtr<StepFiles> owned(pinned);
  *files = owned->files();
  return absl::OkStatus();
}

std::string StoreResource::DebugString() const {
  const std::shared_ptr<const OpenedFiles> files = Get();
  return absl::StrCat("tfctr store '", name_,
                      "': ", files ? absl::StrCat(files->tables.size(), " files") : std::string("not opened"));
}

absl::Status GetOpenedFiles(OpKernelContext* context, int input, std::shared_ptr<const OpenedFiles>* files) {
  tensorflow::core::RefCountPtr<StoreResource> resource;
  TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, input), &resource));
  *files = resource->Get();
  if (*files == nullptr) return NeverOpened(resource->name());
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

absl::Status HashAt(const OpenedFiles& files, int64_t index, const ServedTable** served) {
  if (index < 0 || index >= static_cast<int64_t>(files.size()) || !files.hashes[index]) {
    return NoSuchFile(files, index, "hash");
  }
  *served = files.served[index].get();
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
