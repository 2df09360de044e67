// The address range in which one base file and the slabs of its overlays lie, so that all rows are at
// data() + number * row_bytes.
//
// One range per process for a file and a way to keep it (mapped, or copied to huge pages): the base comes first, behind
// it is room (addresses only) in which each overlay gets a place while some version uses it. So a new overlay neither
// maps nor copies the base again, and the page-table entries of the base stay warm from version to version.
//
// Thread-safety: any thread. No lock is held that a lookup takes (lookups take none). Two threads that want the same
// file wait for one another: it is copied once.
// Cost: Get maps the file, microseconds; with huge pages it copies it once. Place maps the slab, or copies it.
#ifndef TFCTR_CORE_STORAGE_TABLE_SPACE_H_
#define TFCTR_CORE_STORAGE_TABLE_SPACE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/file_format.h"
#include "tfctr/core/storage/served_table.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

class TFCTR_EXPORT TableSpace {
 public:
  struct Stats {
    std::string path;  // of the base, by which it came here
    TableMemory memory;
    uint64_t bytes;    // payload of the base
    int64_t overlays;  // that have a place now
    uint64_t overlay_bytes;
    int64_t refs;
  };

  // The range of this file; made if there is none, or none with `room` bytes behind the base.
  static Result<std::shared_ptr<TableSpace>> Get(const Container& base, TableMemory memory, uint64_t room);
  // Ranges that are in use now.
  static std::vector<Stats> AllStats();
  ~TableSpace();
  TableSpace(const TableSpace&) = delete;
  TableSpace& operator=(const TableSpace&) = delete;

  const uint8_t* data() const { return data_; }
  TableMemory memory() const { return memory_; }
  // Puts the first `bytes` of the overlay's payload at a multiple of `row_bytes` and of a page behind the base. 0: no
  // room. Give the offset back to Release.
  Result<uint64_t> Place(const Container& overlay, uint64_t bytes, uint64_t row_bytes);
  void Release(uint64_t offset);

 private:
  TableSpace() = default;
  static Result<std::shared_ptr<TableSpace>> Make(const Container& base, TableMemory memory, uint64_t room);
  Status CopyBase(const Container& base);
  Status PutSlab(const Container& overlay, uint64_t bytes, uint64_t offset, uint64_t mapped);

  std::string path_;
  TableMemory memory_ = TableMemory::kMapped;
  uint64_t base_bytes_ = 0;  // payload
  uint8_t* data_ = nullptr;
  uint64_t base_end_ = 0;  // whole pages; places lie behind
  uint64_t total_ = 0;     // of the range
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> places_;  // offset -> end, whole pages; guarded by mutex_
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_TABLE_SPACE_H_
