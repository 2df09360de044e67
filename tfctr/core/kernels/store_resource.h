// The resource behind TfctrStore handles: the numbered set of files of one bundle, each table and hash file with the
// overlay that lies over it now. Each session (or eager context) has its own small StoreResource; the files themselves
// are shared through Store::Global().
//
// Thread-safety: Get, Replace and Update may be called from any thread. A reader keeps the set it got, whatever is
// opened after: a change swaps one pointer. A kernel that reads tables has a StoreReader, so that all kernels of one
// run see one set.
#ifndef TFCTR_CORE_KERNELS_STORE_RESOURCE_H_
#define TFCTR_CORE_KERNELS_STORE_RESOURCE_H_

#include <atomic>
#include <cstdint>
#include <functional>
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
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/overlay_file.h"
#include "tfctr/core/storage/served_table.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_file.h"
#include "tfctr/core/storage/vocab_file.h"

namespace tfctr {

// Which tables of a store are read as whole tensors (TfctrTable): a new overlay is put into their arrays before it is
// swapped in, not by the first request after.
class DenseReads {
 public:
  explicit DenseReads(size_t files) : read_(files) {}
  void Set(size_t index) { read_[index].store(true, std::memory_order_relaxed); }
  bool Has(size_t index) const { return read_[index].load(std::memory_order_relaxed); }

 private:
  std::vector<std::atomic<bool>> read_;
};

// One index space: entry i is a file of one kind, the vectors of the other kinds hold null there. Same length.
struct OpenedFiles {
  OpenedFiles(size_t count, TableMemory table_memory)
      : tables(count),
        vocabs(count),
        blobs(count),
        hashes(count),
        overlays(count),
        served(count),
        memory(table_memory),
        dense_reads(std::make_shared<DenseReads>(count)) {}
  size_t size() const { return tables.size(); }
  bool CanServe(size_t i) const { return tables[i] != nullptr || hashes[i] != nullptr; }

  std::vector<std::shared_ptr<const TableFile>> tables;
  std::vector<std::shared_ptr<const VocabFile>> vocabs;
  std::vector<std::shared_ptr<const BlobFile>> blobs;
  std::vector<std::shared_ptr<const HashFile>> hashes;
  std::vector<std::shared_ptr<const OverlayFile>> overlays;  // as the bundle has them, not what lies over a table now
  std::vector<std::shared_ptr<const ServedTable>> served;    // what lookups read: of each table and hash file
  TableMemory memory;
  std::shared_ptr<DenseReads> dense_reads;  // shared by all sets that follow one another
};

class StoreResource : public tensorflow::ResourceBase {
 public:
  using Change = std::function<absl::Status(const OpenedFiles& now, std::shared_ptr<const OpenedFiles>* next)>;

  explicit StoreResource(std::string name) : name_(std::move(name)) {}
  std::string DebugString() const override;

  // Null until the first Replace (TfctrStoreOpen was not run).
  std::shared_ptr<const OpenedFiles> Get() const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    return files_;
  }
  void Replace(std::shared_ptr<const OpenedFiles> files);
  // One change at a time; readers are not held up. FailedPrecondition when nothing was opened yet.
  absl::Status Update(const Change& change);
  const std::string& name() const { return name_; }

 private:
  const std::string name_;
  std::mutex change_mutex_;  // held while a set is made; taken before mutex_
  mutable std::shared_mutex mutex_;
  std::shared_ptr<const OpenedFiles> files_;  // guarded by mutex_
};

// A kernel's access to the files that requests read; make it in the kernel's constructor.
//
// Where a session has several such kernels, the first one of a run pins the set of files for that run, in the run's
// step container, and the others take the same: a run sees old or new overlays, never a mix. A lone kernel needs no
// pin and pays for none. Eager calls and functions called from Python have no container of their own, so nothing is
// pinned in them: overlays are swapped while it serves in sessions only (ServingSession). Thread-safety: Files may be
// called by any number of threads. Cost: about 50 ns, with a pin about 0.3 us and 1 us once a run.
class StoreReader {
 public:
  explicit StoreReader(tensorflow::OpKernelConstruction* context);
  ~StoreReader();
  StoreReader(const StoreReader&) = delete;
  StoreReader& operator=(const StoreReader&) = delete;

  // The set behind input number `input` (a TfctrStore handle). Errors as GetOpenedFiles.
  absl::Status Files(tensorflow::OpKernelContext* context, int input, std::shared_ptr<const OpenedFiles>* files) const;

 private:
  std::shared_ptr<std::atomic<int64_t>> readers_;  // kernels of this session
};

// The opened set behind input number `input` (a TfctrStore handle), for kernels that read no tables. FailedPrecondition
// when the files were never opened (the message says that the init op was not run), NotFound when the resource is gone.
absl::Status GetOpenedFiles(tensorflow::OpKernelContext* context, int input, std::shared_ptr<const OpenedFiles>* files);

// File `index` of the set; InvalidArgument naming the index and what is there instead. The pointers live as long as
// `files` does.
absl::Status TableAt(const OpenedFiles& files, int64_t index, const TableFile** table);
absl::Status VocabAt(const OpenedFiles& files, int64_t index, const VocabFile** vocab);
absl::Status BlobAt(const OpenedFiles& files, int64_t index, std::shared_ptr<const BlobFile>* blob);
// A hash file with what lies over it.
absl::Status HashAt(const OpenedFiles& files, int64_t index, const ServedTable** served);

// DT_INVALID / DType::kInvalid for what has no counterpart.
TFCTR_EXPORT tensorflow::DataType ToTensorFlow(DType dtype);
TFCTR_EXPORT DType FromTensorFlow(tensorflow::DataType dtype);

// kInvalid -> InvalidArgument, kNotFound -> NotFound, kCorrupt -> DataLoss, kIo -> Unavailable,
// kNoSpace -> ResourceExhausted.
absl::Status ToTensorFlow(const Status& status);

}  // namespace tfctr

#endif  // TFCTR_CORE_KERNELS_STORE_RESOURCE_H_
