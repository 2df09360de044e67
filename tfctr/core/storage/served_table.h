// One version of one table as it is looked up: a base file (static table or hash file), perhaps an overlay. Immutable;
// a new overlay makes a new ServedTable, over the same mapping of the base.
//
// Row NUMBERS: a row lies at data() + number * row_bytes(). A static table's rows have their ids as numbers; a hash
// file's rows 0 to N-1, and N is the default row. Overlay row k has the number overlay()->first_row + k: a reader of
// rows knows nothing of overlays, only the step from keys to numbers does.
//
// Thread-safety: immutable; any number of threads. Cost: Make maps the slab (or copies it, with huge pages) behind the
// base's rows; the base is mapped, or copied, once per process whatever the number of versions (table_space.h).
#ifndef TFCTR_CORE_STORAGE_SERVED_TABLE_H_
#define TFCTR_CORE_STORAGE_SERVED_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/overlay_file.h"
#include "tfctr/core/storage/overlay_index.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_base.h"
#include "tfctr/core/storage/table_file.h"

namespace tfctr {

// kMapped: the file's pages, as they lie in the page cache, shared by all processes. kHugePages: a copy in this
// process's own memory, in huge pages: fewer TLB misses for the price of the table's size in memory.
enum class TableMemory { kMapped, kHugePages };
TFCTR_EXPORT const char* TableMemoryName(TableMemory memory);  // "mapped", "huge_pages"
TFCTR_EXPORT Result<TableMemory> TableMemoryFromName(const std::string& name);
// What stores that are opened from now on use: TFCTR_TABLE_MEMORY of the environment ("mapped" where it is not set)
// until it is set here. Another word in the environment is kInvalid.
TFCTR_EXPORT Result<TableMemory> DefaultTableMemory();
TFCTR_EXPORT void SetDefaultTableMemory(TableMemory memory);

class TableSpace;

class TFCTR_EXPORT ServedTable {
 public:
  // `overlay` may be null. kInvalid: an overlay of another base. kNoSpace: no address space or memory left.
  static Result<std::shared_ptr<const ServedTable>> Make(std::shared_ptr<const TableFile> table,
                                                         std::shared_ptr<const OverlayFile> overlay = nullptr,
                                                         TableMemory memory = TableMemory::kMapped);
  static Result<std::shared_ptr<const ServedTable>> Make(std::shared_ptr<const HashFile> hash,
                                                         std::shared_ptr<const OverlayFile> overlay = nullptr,
                                                         TableMemory memory = TableMemory::kMapped);
  ~ServedTable();
  ServedTable(const ServedTable&) = delete;
  ServedTable& operator=(const ServedTable&) = delete;

  const uint8_t* data() const { return data_; }  // row number 0; page-aligned, never null
  int64_t row_bytes() const { return base_.shape.row_bytes; }
  // Numbers are in [0, rows()); from base_rows() to overlay()->first_row there may be none.
  int64_t rows() const { return rows_; }
  // A static table's rows; a hash file's rows and its default row, which is number base_rows() - 1.
  int64_t base_rows() const { return base_.shape.hashed ? base_.rows + 1 : base_.rows; }
  bool hashed() const { return base_.shape.hashed; }
  const RowShape& shape() const { return base_.shape; }
  const OverlayIndex* overlay() const { return overlay_file_ == nullptr ? nullptr : &overlay_; }
  const HashIndex* index() const { return base_.shape.hashed ? &index_ : nullptr; }         // of the base
  const TableFile* table() const { return table_.get(); }                                   // null for a hash file
  const HashFile* hash() const { return hash_.get(); }                                      // null for a static table
  const std::shared_ptr<const OverlayFile>& overlay_file() const { return overlay_file_; }  // or null
  const TableBase& base() const { return base_; }
  TableMemory memory() const { return memory_; }
  const std::string& name() const { return base_.name; }
  const std::string& path() const { return base_.path; }
  const std::string& fingerprint() const { return base_.fingerprint; }  // of the base

  // numbers[i] = number of keys[i]. Hashed: of the default row for keys that are unknown or removed. Static: of the
  // overlay's row where there is one, else keys[i] itself, whatever it is. `numbers` may be `keys`.
  void Find(const int64_t* keys, size_t n, int64_t* numbers) const;
  // Distinct keys that a lookup finds (a static table: its rows).
  int64_t size() const;

  // A static table as one dense array with the overlay's rows in it: the base's mapping where there is no overlay, else
  // a private mapping whose changed pages (one for each changed row, at most) are this process's own. Made when first
  // asked for. kIo when the base's path has another file by now.
  Result<const uint8_t*> Dense() const;

 private:
  ServedTable() = default;
  static Result<std::shared_ptr<const ServedTable>> Finish(std::shared_ptr<ServedTable> made,
                                                           const Container& container, TableMemory memory,
                                                           std::shared_ptr<const OverlayFile> overlay);
  struct DenseCopy;
  std::shared_ptr<const TableFile> table_;
  std::shared_ptr<const HashFile> hash_;
  std::shared_ptr<const OverlayFile> overlay_file_;
  TableBase base_;
  TableMemory memory_ = TableMemory::kMapped;
  const uint8_t* data_ = nullptr;
  int64_t rows_ = 0;
  HashIndex index_;
  OverlayIndex overlay_;
  std::shared_ptr<TableSpace> space_;
  uint64_t slot_ = 0;  // offset of the slab in the space; 0: none
  uint64_t slot_bytes_ = 0;
  std::unique_ptr<DenseCopy> dense_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_SERVED_TABLE_H_
