// A growing table from int64 keys (all of them are legal) to rows of floats: a value, optimizer slots and, where the
// layout asks for it, frequency, last step and last time. See row_layout.h for a row, docs/embedding_variable.md for
// the rules of counting and admission.
//
// A row never moves. It is freed only when it is erased and every ReadGuard that was taken before has ended, so a
// `float*` is valid while a guard taken before the lookup lives. Floats and metadata of rows are read and written
// through relaxed.h: lookups and updates of one row may overlap (each float is one that was written).
//
// Thread-safety: every method may be called from any thread, except where it says otherwise. Locks are taken in the
// order structure (erase, snapshot) -> gate (updates) -> admission -> shard; a thread that holds an UpdateGuard must
// not call FindOrInsert, Put, EraseIf or a snapshot.
// Cost: Find takes no lock. Index 16 bytes an entry at a load of 0.54 to 0.75; rows lie in huge pages.
#ifndef TFCTR_CORE_STORAGE_EMBEDDING_TABLE_H_
#define TFCTR_CORE_STORAGE_EMBEDDING_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tfctr/core/storage/admission.h"
#include "tfctr/core/storage/now.h"
#include "tfctr/core/storage/row_initializer.h"
#include "tfctr/core/storage/row_layout.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct TableConfig {
  std::string name;  // in messages
  RowLayout layout;
  InitializerConfig init;
  std::vector<float> default_value;      // dim floats; empty = zeros
  std::shared_ptr<Admission> admission;  // null = every key is admitted
  uint64_t max_bytes = 0;                // of bytes(); 0 = no limit
  int shards = 16;                       // 1 to 4096
  uint64_t reserve_rows = 0;
};

// Columns of n rows as import and checkpoints hold them. A null pointer = the column is absent: initial values, initial
// slots, frequency 0, step and time 0. A column that the layout lacks is not read.
struct RowColumns {
  const float* values = nullptr;    // [n, dim]
  std::vector<const float*> slots;  // [n, width] each, in the layout's order; may be shorter or hold nulls
  const uint32_t* frequency = nullptr;
  const int64_t* last_step = nullptr;
  const int64_t* last_time_ms = nullptr;
};

// Runs task(0) ... task(tasks - 1), in any order and on any threads, and returns when all are done.
using Parallel = std::function<void(size_t tasks, const std::function<void(size_t)>& task)>;

class EmbeddingTable;
struct TableState;  // table_internal.h

// Rows that were found stay readable while the guard lives. Cheap (two atomic operations): one per batch.
class ReadGuard {
 public:
  explicit ReadGuard(const EmbeddingTable& table) : table_(&table) { Enter(); }
  ~ReadGuard() { Leave(); }
  ReadGuard(const ReadGuard&) = delete;
  ReadGuard& operator=(const ReadGuard&) = delete;

 private:
  friend class EmbeddingTable;
  void Enter();
  void Leave();
  const EmbeddingTable* table_;
  size_t place_ = 0;
};

// Held (with a ReadGuard) while rows are updated, one per batch: no row is erased or copied by a snapshot meanwhile.
// Guards don't exclude one another.
class UpdateGuard {
 public:
  explicit UpdateGuard(const EmbeddingTable& table) : table_(&table) { Enter(); }
  ~UpdateGuard() { Leave(); }
  UpdateGuard(const UpdateGuard&) = delete;
  UpdateGuard& operator=(const UpdateGuard&) = delete;

 private:
  void Enter();
  void Leave();
  const EmbeddingTable* table_;
};

class EmbeddingTable {
 public:
  static constexpr size_t kFindBlock = 256;

  static Result<std::shared_ptr<EmbeddingTable>> Create(TableConfig config);
  ~EmbeddingTable();
  EmbeddingTable(const EmbeddingTable&) = delete;
  EmbeddingTable& operator=(const EmbeddingTable&) = delete;

  const TableConfig& config() const;
  const std::string& name() const { return config().name; }
  const RowLayout& layout() const { return config().layout; }
  const float* default_row() const;  // dim floats
  const std::shared_ptr<Admission>& admission() const { return config().admission; }
  int shards() const { return config().shards; }

  // --- lookups ---

  // rows[i] = the row of keys[i], or null. Under a ReadGuard. Any n; prefetches the index, then the values, so that a
  // caller which handles kFindBlock keys at a time finds the rows in its cache.
  void Find(const int64_t* keys, size_t n, float** rows) const;

  // Find and copy: out[i] = the value of keys[i], or the default row. Under a ReadGuard. Returns how many keys have a
  // row. The fastest lookup: copying, probing and prefetching of different keys overlap.
  size_t Gather(const int64_t* keys, size_t n, float* out) const;
  // Copies the values of rows that were found; the default row where rows[i] is null. Prefetches.
  void CopyRows(float* const* rows, size_t n, float* out) const;

  // The training lookup: counts every occurrence in the call, then admits, inserts and returns. rows[i] is null where
  // keys[i] is not admitted. One call per lookup op, whose occurrences count together; `parallel` (may be null) is used
  // for its work, and must go on when other threads wait for this table. While keys are inserted the guard is left:
  // rows that were found under it *earlier* are no longer protected afterwards, those of this call are. kNoSpace,
  // naming table, bytes and limit, when max_bytes is reached and set_make_room can't help; counts, and rows inserted so
  // far, stay.
  Status FindOrInsert(ReadGuard* guard, const int64_t* keys, size_t n, Now now, float** rows,
                      const Parallel& parallel = nullptr);

  // What to do when max_bytes is reached: erase at least some of `rows` rows, return how many went. Set before use.
  using MakeRoom = std::function<size_t(EmbeddingTable* table, size_t rows)>;
  void set_make_room(MakeRoom make_room);

  // --- updates ---

  // Sets last step, last time and change of an updated row, where the layout has them. `mark`: this_mark(), read under
  // the UpdateGuard.
  void Touch(float* row, Now now, uint32_t mark) const {
    const RowLayout& layout = this->layout();
    if (layout.has_last_step()) StoreNow(layout.last_step(row), now.step);
    if (layout.has_last_time()) StoreNow(layout.last_time_ms(row), now.time_ms);
    if (layout.has_change()) __atomic_store_n(layout.change(row), mark, __ATOMIC_RELAXED);
  }

  // --- changes (where the layout has them), for TableSnapshot::Changes ---

  // What rows that change now are stamped with. The first is 1.
  uint32_t this_mark() const;
  // Begins the next mark and returns the one that ended: whatever was written before has a stamp of at most that,
  // whatever is written from now on a greater one. Waits for updates that are on their way.
  uint32_t EndMark();
  // A random number of this object: another table in its place has another one.
  int64_t instance() const;
  // SAVE/NAME of what this table is an exact copy of, up to the end of mark 1; empty: nothing. Set before use.
  const std::string& origin() const;
  void set_origin(std::string save);

  // --- the whole table ---

  uint64_t size() const;  // rows
  // Memory in bytes: index arrays, blocks of rows (those of erased keys and unused ones included) and what admission
  // counts. Never more than max_bytes but for counters. Not counted: 20 KB of fixed size, and lists of erased rows that
  // wait to be used again (8 bytes each), and keys that were erased since a mark (16 bytes each, for at
  // most half as many as there are rows).
  uint64_t bytes() const;
  // Room in the index for n rows altogether. kNoSpace past max_bytes.
  Status Reserve(uint64_t n);

  // Writes rows whatever admission says; an existing row is overwritten, the last one wins where a key repeats.
  // Counters of these keys go. kNoSpace past max_bytes (rows written so far stay).
  Status Put(const int64_t* keys, size_t n, const RowColumns& columns, const Parallel& parallel = nullptr);

  // Erases those of `keys` that have a row for which `condemned` holds, asked under the locks that keep updates and
  // inserts out. Returns how many. Waits for a snapshot to end. Counters are not touched.
  size_t EraseIf(const int64_t* keys, size_t n, const std::function<bool(int64_t key, const float* row)>& condemned);

  // Calls visit for every row of a shard, in no particular order, while the shard neither gains nor loses rows (updates
  // go on). `visit` must not call methods of this table that change it.
  void ForEach(int shard, const std::function<void(int64_t key, const float* row)>& visit) const;

 private:
  friend class ReadGuard;
  friend class UpdateGuard;
  friend class TableSnapshot;
  explicit EmbeddingTable(std::unique_ptr<TableState> state);
  static void StoreNow(int64_t* to, int64_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
  std::unique_ptr<TableState> state_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_EMBEDDING_TABLE_H_
