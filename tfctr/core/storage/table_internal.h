// What the files of the embedding table share: its state, the writing side of a shard, and scratch for batches.
// Thread-safety: see the members. Cost: see embedding_table.h.
#ifndef TFCTR_CORE_STORAGE_TABLE_INTERNAL_H_
#define TFCTR_CORE_STORAGE_TABLE_INTERNAL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tfctr/core/storage/embedding_table.h"
#include "tfctr/core/storage/epoch.h"
#include "tfctr/core/storage/hash_index.h"
#include "tfctr/core/storage/index_memory.h"
#include "tfctr/core/storage/removed_log.h"
#include "tfctr/core/storage/row_arena.h"
#include "tfctr/core/storage/update_gate.h"

namespace tfctr {

inline constexpr double kMaxLoad = 0.75;  // of an index array, erased entries included; then it is rebuilt
inline constexpr double kHardLoad = 0.9;  // where max_bytes forbids a larger one
inline constexpr double kGrowth = 1.4;
inline constexpr size_t kFirstCapacity = 8;

// The state of one shard that writers share; all of it under the mutex.
struct alignas(64) TableShard {
  mutable std::mutex mutex;
  size_t live = 0;        // entries with a row, pending ones included
  size_t used = 0;        // and erased ones
  char* fresh = nullptr;  // rows of the last block that were never used
  size_t fresh_rows = 0;
  std::vector<float*> spare;         // rows of erased keys, from the table's free_rows
  bool logging = false;              // a snapshot has yet to copy this shard
  std::vector<const float*> logged;  // rows inserted since it began
  std::atomic<uint64_t> rows{0};     // what size() adds up
  RemovedLog removed;                // keys whose rows were erased since a mark
};

struct TableState {
  explicit TableState(TableConfig c);
  ~TableState();

  KeyPlace Place(int64_t key) const { return PlaceOf(key, salt, shards.size()); }
  IndexArray* Index(size_t shard) const { return indexes[shard].load(std::memory_order_acquire); }

  // Memory is asked for before it is taken. False when that would exceed max_bytes less `headroom`.
  bool Charge(uint64_t more, int64_t headroom);
  void Discharge(uint64_t bytes) { used_bytes.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t Bytes() const { return used_bytes.load(std::memory_order_relaxed) + CounterBytes(); }
  uint64_t CounterBytes() const;
  Status NoSpace(const char* what) const;

  // The next larger capacity of a shard's index. Shards grow at different sizes of the table: the memory of all is
  // even.
  size_t NextCapacity(size_t shard, size_t capacity) const;
  // Replaces the index of a shard, whose mutex is held. False when max_bytes (less `headroom`) or the system refuses.
  bool Rebuild(size_t shard, size_t capacity, int64_t headroom = 0);
  // Makes a place in the index of a shard that is as full as it should be: a larger index, or one without erased
  // entries, or more entries of this one (up to kHardLoad, where `may_fill`). The mutex is held.
  Status MakeIndexRoom(size_t shard, bool may_fill);
  // A row for a shard, whose mutex is held; null when there is none within max_bytes.
  float* NewRow(TableShard* shard);
  void InitialSlots(float* row) const;

  // EraseIf for some keys of one shard, given by their positions. Takes the gate and the shard's mutex.
  size_t EraseOfShard(size_t shard, const int64_t* keys, const uint32_t* begin, const uint32_t* end,
                      const std::function<bool(int64_t key, const float* row)>& condemned);
  // What readers may still see: freed by Reclaim when none does.
  void Retire(std::vector<float*> rows);
  void RetireIndex(IndexArray* array);
  // Takes locks. True when something was freed.
  bool Reclaim();
  // max_bytes is reached: reclaims, or erases `rows` rows by make_room and waits for the readers to leave. False when
  // nothing could be freed. `rooms_seen`: `rooms` before the caller found none. No lock and no guard of the caller is
  // held.
  bool MakeRoomFor(EmbeddingTable* self, size_t rows, uint64_t rooms_seen);

  struct Retired {
    uint64_t tag;
    std::vector<float*> rows;
    IndexArray* index;
  };

  TableConfig config;
  const RowInitializer initializer;
  const uint64_t salt;
  std::vector<float> slot_floats;  // what InitialSlots copies
  bool zero_slots = true;
  std::vector<TableShard> shards;
  std::vector<std::atomic<IndexArray*>> indexes;  // by shard: what readers load
  IndexMemory index_memory;
  RowArena arena;
  std::atomic<uint64_t> used_bytes{0};
  std::atomic<uint32_t> this_mark{1};  // written under the gate, exclusively; rows are stamped under it, shared
  const int64_t instance;
  std::string origin;
  std::atomic<uint64_t> largest_index{0};  // bytes: what a rebuild of any shard may need
  std::mutex rebuilds;                     // under max_bytes one at a time: there is room for one
  EmbeddingTable::MakeRoom make_room;
  std::mutex room_mutex;
  std::atomic<uint64_t> rooms{0};  // that make_room made

  mutable Epochs epochs;
  std::mutex retired_mutex;
  std::vector<Retired> retired;
  std::atomic<bool> any_retired{false};
  std::mutex free_mutex;
  std::vector<float*> free_rows;  // of erased keys, for any shard

  // In locking order.
  HandoverMutex structure;  // erasing, snapshots
  mutable UpdateGate gate;  // shared: updates, training lookups. Exclusive: erasing, copying
  std::mutex admission;     // counting, admitting and inserting of keys without a row, where there is admission
};

// Inserts into one shard: entries are placed with rows that nobody else sees, the caller initialises the rows, Publish
// shows them. Holds the shard's mutex.
class ShardWriter {
 public:
  static constexpr size_t kBatch = 128;

  ShardWriter(TableState* table, size_t shard);
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  void Prefetch(uint64_t place) const { __builtin_prefetch(index_->begin() + index_->Home(place), 1); }

  // The row of a key. `created`: it is new, is to be initialised and counts as one of the batch. Null when the batch is
  // full or there is no room: initialise, Publish, MakeRoom, then place it again.
  float* Place(int64_t key, uint64_t place, bool* created);
  // Rows that were created since the last Publish.
  size_t count() const { return count_; }
  const int64_t* keys() const { return keys_; }
  float* const* rows() const { return rows_; }
  void Publish();
  // After Publish. Does what the last failed Place needs; kNoSpace when it can't.
  Status MakeRoom();

 private:
  enum class Lack { kBatch, kEntries, kTail, kRow };
  float* Lacks(Lack lack) {
    lack_ = lack;
    return nullptr;
  }

  TableState* const table_;
  const size_t at_;
  TableShard* const shard_;
  std::unique_lock<std::mutex> lock_;
  IndexArray* index_;
  size_t limit_;  // of used entries
  Lack lack_ = Lack::kBatch;
  size_t count_ = 0;
  int64_t keys_[kBatch];
  float* rows_[kBatch];
  IndexEntry* entries_[kBatch];
};

// Positions of a batch, ordered by shard.
class ByShard {
 public:
  // `positions` null: 0 ... n - 1.
  ByShard(const TableState& table, const int64_t* keys, const uint32_t* positions, size_t n);
  size_t shards() const { return starts_.size() - 1; }
  const uint32_t* begin(size_t shard) const { return positions_.data() + starts_[shard]; }
  const uint32_t* end(size_t shard) const { return positions_.data() + starts_[shard + 1]; }
  bool empty(size_t shard) const { return starts_[shard] == starts_[shard + 1]; }

 private:
  std::vector<uint32_t> positions_;
  std::vector<size_t> starts_;
};

// Calls visit(key, row) for the rows of a shard, whose mutex is held; bytes [first, row_bytes) of rows are fetched
// ahead.
template <typename Visit>
void VisitRows(const IndexArray& index, size_t row_bytes, Visit&& visit, size_t first = 0) {
  constexpr size_t kAhead = 16;
  const IndexEntry* ahead = index.begin();
  const IndexEntry* const end = index.end();
  size_t fetched = 0;  // live entries between `at` and `ahead`
  for (const IndexEntry* at = index.begin(); at != end; ++at) {
    for (; ahead != end && fetched < kAhead; ++ahead) {
      if (!IsLive(ahead->row)) continue;
      for (size_t byte = first; byte < row_bytes; byte += 64)
        __builtin_prefetch(reinterpret_cast<char*>(ahead->row) + byte);
      ++fetched;
    }
    if (!IsLive(at->row)) continue;
    visit(at->key, RowOf(at->row));
    --fetched;
  }
}

// Runs tasks in order where there is no `parallel` or no more than one.
void RunTasks(const Parallel& parallel, size_t tasks, const std::function<void(size_t)>& task);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_TABLE_INTERNAL_H_
