// Reads a checkpoint's tensor row after row, whatever slices it is stored in: what a table's keys, values and steps are
// gone through with, side by side. The checksum of each slice is compared when its last byte was read.
// Thread-safety: belongs to one thread. Cost: one positioned read per call and slice, straight into the caller's
// memory.
#ifndef TFCTR_CORE_STORAGE_CHECKPOINT_COLUMN_H_
#define TFCTR_CORE_STORAGE_CHECKPOINT_COLUMN_H_

#include <cstdint>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/checkpoint_copy.h"
#include "tfctr/core/storage/file_io.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

class TFCTR_EXPORT CheckpointColumn {
 public:
  CheckpointColumn() = default;
  // extents: in the order of rows, each of whole rows of `row_bytes`. kInvalid where one is not.
  static Result<CheckpointColumn> Open(std::vector<CheckpointExtent> extents, uint64_t row_bytes);

  int64_t rows() const { return rows_; }
  uint64_t row_bytes() const { return row_bytes_; }
  // The next `rows` rows. kCorrupt names tensor and shard where a checksum does not match or the shard ends early;
  // kInvalid where fewer rows are left.
  Status Read(int64_t rows, void* out);

 private:
  Status EndOfExtent();

  std::vector<CheckpointExtent> extents_;
  uint64_t row_bytes_ = 0;
  int64_t rows_ = 0;
  size_t current_ = 0;  // extent
  uint64_t done_ = 0;   // bytes of it that were read
  uint32_t crc_ = 0;
  UniqueFd fd_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_CHECKPOINT_COLUMN_H_
