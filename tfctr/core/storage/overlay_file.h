// Overlay file: the rows of one table (a static table or a hash file) that differ from the base file, and the keys that
// are gone: a slab of rows and an index (overlay_index.h). A table has at most one: deltas are merged into a new file.
// Rows lie from byte 0, so that the slab can be mapped right behind the base's rows (table_space.h).
// docs/bundle_format.md has the bytes.
//
// Thread-safety: OverlayFile is immutable; BuildOverlay uses only its arguments.
// Cost: Open reads footer, metadata, 4 bytes per 8 MiB. BuildOverlay reads the previous overlay and the deltas, never
// the base's rows: time, memory and disk grow with the changed rows alone.
#ifndef TFCTR_CORE_STORAGE_OVERLAY_FILE_H_
#define TFCTR_CORE_STORAGE_OVERLAY_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/delta_file.h"
#include "tfctr/core/storage/file_format.h"
#include "tfctr/core/storage/file_io.h"
#include "tfctr/core/storage/overlay_index.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_base.h"

namespace tfctr {

class TFCTR_EXPORT OverlayFile {
 public:
  // kNotFound, kCorrupt, kInvalid (another kind of file) or kIo.
  static Result<std::shared_ptr<const OverlayFile>> Open(const std::string& path);
  static Result<std::shared_ptr<const OverlayFile>> FromContainer(std::unique_ptr<Container> container);

  const std::string& name() const { return name_; }                          // of the table
  const std::string& base_fingerprint() const { return base_fingerprint_; }  // of the file it lies over
  int64_t base_rows() const { return base_rows_; }                           // as TableBase::rows
  const RowShape& shape() const { return shape_; }
  int64_t rows() const { return index_.rows; }
  int64_t added() const { return added_; }  // of rows(): keys that the base does not hold
  int64_t removed() const { return removed_; }
  const int64_t* keys() const { return keys_; }                  // of slab row i; ascending
  const int64_t* removed_keys() const { return removed_keys_; }  // ascending; each is a key of the base
  const uint8_t* row(int64_t i) const { return container_->data() + i * shape_.row_bytes; }
  // first_row is 0 and missing that of the base: a ServedTable has the real numbers.
  const OverlayIndex& index() const { return index_; }

  const std::string& path() const { return container_->path(); }
  const std::string& fingerprint() const { return container_->fingerprint(); }
  const Metadata& metadata() const { return container_->metadata(); }
  const Container& container() const { return *container_; }
  uint64_t bytes() const { return container_->data_bytes(); }
  bool has_checksums() const { return container_->has_checksums(); }
  Status VerifyChecksums() const { return container_->VerifyChecksums(); }
  // Reads keys and index: keys ascend, every key is found at its row, the bitmap has its bit, counts add up. kCorrupt.
  Status VerifyIndex() const;
  // kInvalid, naming both files, unless this is an overlay of that base.
  Status CheckBase(const TableBase& base) const;

 private:
  OverlayFile() = default;
  std::unique_ptr<Container> container_;
  RowShape shape_;
  std::string name_;
  std::string base_fingerprint_;
  int64_t base_rows_ = 0;
  int64_t added_ = 0;
  int64_t removed_ = 0;
  const int64_t* keys_ = nullptr;
  const int64_t* removed_keys_ = nullptr;
  OverlayIndex index_;
};

struct OverlayStats {
  int64_t rows = 0;     // of the overlay
  int64_t added = 0;    // of these: keys that the base does not hold
  int64_t removed = 0;  // keys of the base that are gone
  uint64_t bytes = 0;   // payload of the file
};

// Writes the overlay of `base` that has `previous` (null: none) and then the deltas, in order, in it. A key that was
// removed and comes again has the new row; a removed key that the base does not hold leaves no trace. kInvalid, naming
// file and key: a delta or a previous overlay of another table or row shape; a key both added and removed by one delta.
// `extra`: more metadata. The file appears whole, synced, or not at all.
TFCTR_EXPORT Status BuildOverlay(const std::string& path, const TableBase& base, const OverlayFile* previous,
                                 const std::vector<const DeltaFile*>& deltas, const Metadata& extra,
                                 OverlayStats* stats);
// The same in memory (memfd): the descriptor, from which "/proc/self/fd/N" can be opened while it is open.
TFCTR_EXPORT Result<UniqueFd> BuildOverlayInMemory(const TableBase& base, const OverlayFile* previous,
                                                   const std::vector<const DeltaFile*>& deltas, const Metadata& extra,
                                                   OverlayStats* stats);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_OVERLAY_FILE_H_
