// Delta file: what changed in one table from one version to the next. Rows that are new or other, in stored form, by
// key (a static table's keys are row ids), and the keys that are gone. Both lists are sorted; no key is in both.
// docs/bundle_format.md has the bytes; docs/deltas.md says what a delta folder is.
//
// Thread-safety: DeltaFile is immutable; a DeltaFileWriter belongs to one thread.
// Cost: Open reads footer, metadata and 4 bytes per 8 MiB. The writer keeps the rows in memory until Finish.
#ifndef TFCTR_CORE_STORAGE_DELTA_FILE_H_
#define TFCTR_CORE_STORAGE_DELTA_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/file_format.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_base.h"

namespace tfctr {

class TFCTR_EXPORT DeltaFile {
 public:
  // kNotFound, kCorrupt, kInvalid (another kind of file) or kIo. Reads no key and no row.
  static Result<std::shared_ptr<const DeltaFile>> Open(const std::string& path);
  static Result<std::shared_ptr<const DeltaFile>> FromContainer(std::unique_ptr<Container> container);

  const std::string& name() const { return name_; }  // of the table
  const RowShape& shape() const { return shape_; }
  int64_t table_rows() const { return table_rows_; }  // of the static table; 0 for a hashed one
  int64_t rows() const { return rows_; }
  int64_t removed() const { return removed_; }
  const int64_t* keys() const { return keys_; }                  // rows() of them, ascending
  const int64_t* removed_keys() const { return removed_keys_; }  // removed() of them, ascending
  const uint8_t* row(int64_t i) const { return container_->data() + i * shape_.row_bytes; }

  const std::string& path() const { return container_->path(); }
  const std::string& fingerprint() const { return container_->fingerprint(); }
  const Metadata& metadata() const { return container_->metadata(); }
  const Container& container() const { return *container_; }
  uint64_t bytes() const { return container_->data_bytes(); }
  Status VerifyChecksums() const { return container_->VerifyChecksums(); }
  // Both lists ascend, no key is in both, a static table's row ids are in [0, table_rows()). Reads the keys. kCorrupt.
  Status VerifyKeys() const;

 private:
  DeltaFile() = default;
  std::unique_ptr<Container> container_;
  RowShape shape_;
  std::string name_;
  int64_t table_rows_ = 0;
  int64_t rows_ = 0;
  int64_t removed_ = 0;
  const int64_t* keys_ = nullptr;
  const int64_t* removed_keys_ = nullptr;
};

class TFCTR_EXPORT DeltaFileWriter {
 public:
  // `table_rows`: rows of a static table, 0 for a hashed one. `extra`: more metadata (step, time_ms, ...).
  static Result<std::unique_ptr<DeltaFileWriter>> Create(const std::string& path, const std::string& name,
                                                         const RowShape& shape, int64_t table_rows,
                                                         Metadata extra = {});
  // Rows in any order; row i starts at rows + i * stride (0: shape.row_bytes). Bytes behind a stored row are not read
  // where the stride is shorter than shape.row_bytes.
  Status Add(const int64_t* keys, int64_t n, const void* rows, int64_t stride = 0);
  Status Remove(const int64_t* keys, int64_t n);
  int64_t rows() const { return static_cast<int64_t>(keys_.size()); }
  int64_t removed() const { return static_cast<int64_t>(removed_.size()); }
  // Sorts and writes; the file appears whole or not at all. kInvalid, naming table and key: a key that was given twice,
  // that is both added and removed, or that is no row id of the static table; a removed row of a static table.
  Status Finish();

 private:
  DeltaFileWriter() = default;
  Status Write(const std::vector<int64_t>& order);
  std::unique_ptr<ContainerWriter> writer_;
  std::string name_;
  RowShape shape_;
  int64_t table_rows_ = 0;
  Metadata extra_;
  std::vector<int64_t> keys_;
  std::vector<int64_t> removed_;
  std::vector<uint8_t> rows_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_DELTA_FILE_H_
