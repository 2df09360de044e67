// The resource behind TfctrStore handles: the numbered set of table, vocabulary and blob files of one bundle. Each
// session (or eager context) has its own small StoreResource; the files themselves are shared through Store::Global().
//
// Thread-safety: Get and Replace may be called from any thread. A reader keeps the set it got, whatever is opened
// after: Replace swaps one pointer.
#ifndef TFCTR_CORE_KERNELS_STORE_RESOURCE_H_
#define TFCTR_CORE_KERNELS_STORE_RESOURCE_H_

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/types.h"
#include "tfctr/core/export.h"
#include "tfctr/core/storage/blob_file.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_file.h"
#include "tfctr/core/storage/vocab_file.h"

namespace tfctr {

// One index space: entry i is a table, a vocabulary or a blob, the other vectors hold null there. Same length.
struct OpenedFiles {
  std::vector<std::shared_ptr<const TableFile>> tables;
  std::vector<std::shared_ptr<const VocabFile>> vocabs;
  std::vector<std::shared_ptr<const BlobFile>> blobs;
};

class StoreResource : public tensorflow::ResourceBase {
 public:
  explicit StoreResource(std::string name) : name_(std::move(name)) {}
  std::string DebugString() const override;

  // Null until the first Replace (TfctrStoreOpen was not run).
  std::shared_ptr<const OpenedFiles> Get() const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    return files_;
  }
  void Replace(std::shared_ptr<const OpenedFiles> files) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    files_.swap(files);
  }
  const std::string& name() const { return name_; }

 private:
  const std::string name_;
  mutable std::shared_mutex mutex_;
  std::shared_ptr<const OpenedFiles> files_;  // guarded by mutex_
};

// The opened set behind input number `input` (a TfctrStore handle). FailedPrecondition when the files were never
// opened (the message says that the init op was not run), NotFound when the resource is gone.
absl::Status GetOpenedFiles(tensorflow::OpKernelContext* context, int input, std::shared_ptr<const OpenedFiles>* files);

// File `index` of the set; InvalidArgument naming the index and what is there instead. The pointers live as long as
// `files` does.
absl::Status TableAt(const OpenedFiles& files, int64_t index, const TableFile** table);
absl::Status VocabAt(const OpenedFiles& files, int64_t index, const VocabFile** vocab);
absl::Status BlobAt(const OpenedFiles& files, int64_t index, std::shared_ptr<const BlobFile>* blob);

// DT_INVALID / DType::kInvalid for what has no counterpart.
TFCTR_EXPORT tensorflow::DataType ToTensorFlow(DType dtype);
TFCTR_EXPORT DType FromTensorFlow(tensorflow::DataType dtype);

// kInvalid -> InvalidArgument, kNotFound -> NotFound, kCorrupt -> DataLoss, kIo -> Unavailable,
// kNoSpace -> ResourceExhausted.
absl::Status ToTensorFlow(const Status& status);

}  // namespace tfctr

#endif  // TFCTR_CORE_KERNELS_STORE_RESOURCE_H_
