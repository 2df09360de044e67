// A consistent copy of a table, taken shard by shard while lookups, inserts and updates go on.
//
// Begin() fixes which rows are in it: those that exist then. Rows inserted later are left out, erasing waits until the
// snapshot is destroyed. ReadShard() copies keys, values, slots and counters of a shard at one moment: no update and no
// count of a lookup is half in it.
//
// Thread-safety: one thread at a time. Several snapshots of one table wait for one another.
// Cost: memory of one shard's copy (the caller's RowBlock); updates wait while a shard is copied (about 30 ns a row).
#ifndef TFCTR_CORE_STORAGE_TABLE_SNAPSHOT_H_
#define TFCTR_CORE_STORAGE_TABLE_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "tfctr/core/storage/embedding_table.h"

namespace tfctr {

// The rows of a shard as columns. Columns that the layout lacks stay empty. Memory is kept from shard to shard.
struct RowBlock {
  size_t rows = 0;
  std::vector<int64_t> keys;              // [rows]
  std::vector<float> values;              // [rows, dim]
  std::vector<std::vector<float>> slots;  // [rows, width] each
  std::vector<uint32_t> frequency;        // [rows]
  std::vector<int64_t> last_step;         // [rows]
  std::vector<int64_t> last_time_ms;      // [rows]

  void Resize(const RowLayout& layout, size_t n);
};

// The rows that changed since a mark. Each is read later, as it is then; none is erased while the snapshot lives.
struct ChangedRows {
  std::vector<int64_t> keys;
  std::vector<const float*> rows;
  std::vector<int64_t> removed;  // keys whose row was erased since, and may be back; some of them twice
  bool known = true;             // false: too much was erased to be remembered, the rest is empty
};

class TableSnapshot {
 public:
  // Waits for erasing, and for another snapshot, to end.
  explicit TableSnapshot(std::shared_ptr<EmbeddingTable> table);
  ~TableSnapshot();
  TableSnapshot(const TableSnapshot&) = delete;
  TableSnapshot& operator=(const TableSnapshot&) = delete;

  uint64_t rows() const { return rows_; }  // of all shards; fixed
  uint64_t shard_rows(int shard) const { return shard_rows_[static_cast<size_t>(shard)]; }
  int shards() const { return static_cast<int>(shard_rows_.size()); }

  // What changed since the end of `mark`; the layout must have changes. Instead of ReadShard, once. Rows that are
  // inserted meanwhile may be in it. Not `known` as well where that is more than `most_rows` rows.
  // Cost: the index and one word of every row, about 8 ns a row; inserts into a shard wait while it is looked through.
  ChangedRows Changes(uint32_t mark, size_t most_rows);
  // Rows [begin, begin + n) of `changed`, all of one moment.
  void ReadRows(const ChangedRows& changed, size_t begin, size_t n, RowBlock* block);

  // Each shard once, in any order.
  void ReadShard(int shard, RowBlock* block);

 private:
  std::shared_ptr<EmbeddingTable> table_;
  std::vector<uint64_t> shard_rows_;
  uint64_t rows_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_TABLE_SNAPSHOT_H_
