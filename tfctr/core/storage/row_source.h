// The rows of the newer state of a table, block after block, with their keys: what a delta compares a served table
// with.
//
//   TensorRows      a checkpoint's tensor; keys are row numbers, first + k * stride of row k (parts of one table)
//   CheckpointRows  an embedding variable in a checkpoint: columns of keys, values and, where it has them, last steps
//   TableFileRows   a table file; keys as TensorRows
//   HashFileRows    a hash file; its rows are in stored form already
//
// Thread-safety: a source belongs to one thread. Cost: one pass over the bytes; nothing is mapped but a hash file.
#ifndef TFCTR_CORE_STORAGE_ROW_SOURCE_H_
#define TFCTR_CORE_STORAGE_ROW_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/checkpoint_column.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_file.h"

namespace tfctr {

class TFCTR_EXPORT RowSource {
 public:
  virtual ~RowSource() = default;
  virtual int64_t rows() const = 0;
  // Bytes of a row as `Read` gives it.
  virtual uint64_t row_bytes() const = 0;
  // Whether rows come in the stored form of the table that they are compared with.
  virtual bool stored() const { return false; }
  virtual bool has_last_step() const { return false; }
  // The next n rows (no more than are left): keys [n], rows [n, row_bytes], last_step [n] where there are any.
  virtual Status Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) = 0;
};

// Row numbers of one part of a table: first, first + stride, ...
struct RowNumbers {
  int64_t first = 0;
  int64_t stride = 1;

  void Take(int64_t n, int64_t* keys) {
    for (int64_t k = 0; k < n; ++k) keys[k] = first + k * stride;
    first += n * stride;
  }
};

class TFCTR_EXPORT TensorRows : public RowSource {
 public:
  TensorRows(CheckpointColumn values, RowNumbers numbers) : values_(std::move(values)), numbers_(numbers) {}
  int64_t rows() const override { return values_.rows(); }
  uint64_t row_bytes() const override { return values_.row_bytes(); }
  Status Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) override;

 private:
  CheckpointColumn values_;
  RowNumbers numbers_;
};

class TFCTR_EXPORT CheckpointRows : public RowSource {
 public:
  // keys: rows of 8 bytes. last_step: the same, or none of any extents. kCorrupt where the columns differ in length.
  static Result<std::unique_ptr<RowSource>> Make(CheckpointColumn keys, CheckpointColumn values,
                                                 CheckpointColumn last_step, bool has_last_step);
  int64_t rows() const override { return keys_.rows(); }
  uint64_t row_bytes() const override { return values_.row_bytes(); }
  bool has_last_step() const override { return has_last_step_; }
  Status Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) override;

 private:
  CheckpointRows() = default;
  CheckpointColumn keys_;
  CheckpointColumn values_;
  CheckpointColumn last_step_;
  bool has_last_step_ = false;
};

class TFCTR_EXPORT TableFileRows : public RowSource {
 public:
  static Result<std::unique_ptr<RowSource>> Open(const std::string& path, RowNumbers numbers);
  int64_t rows() const override { return table_->rows(); }
  uint64_t row_bytes() const override { return row_bytes_; }
  Status Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) override;

 private:
  TableFileRows() = default;
  std::shared_ptr<const TableFile> table_;
  UniqueFd fd_;
  uint64_t row_bytes_ = 0;
  int64_t next_ = 0;
  RowNumbers numbers_;
};

class TFCTR_EXPORT HashFileRows : public RowSource {
 public:
  explicit HashFileRows(std::shared_ptr<const HashFile> file);
  int64_t rows() const override { return file_->size(); }
  uint64_t row_bytes() const override { return row_bytes_; }
  bool stored() const override { return true; }
  Status Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) override;

 private:
  std::shared_ptr<const HashFile> file_;
  uint64_t row_bytes_ = 0;
  int64_t next_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_ROW_SOURCE_H_
