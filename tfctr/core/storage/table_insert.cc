// The training lookup.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <shared_mutex>

#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/table_internal.h"

namespace tfctr {
namespace {

// Under the gate: `mark` is the table's.
void CountRow(const RowLayout& layout, float* row, uint32_t occurrences, uint32_t mark) {
  if (!layout.has_frequency()) return;
  AddSaturating(layout.frequency(row), occurrences);
  if (layout.has_change()) StoreRelaxed(layout.change(row), mark);
}

constexpr size_t kTaskKeys = 16384;  // of a first look
constexpr size_t kSample = EmbeddingTable::kFindBlock;
constexpr size_t kAhead = 16;  // keys whose index entries are fetched before they are probed

// Most keys of a growing table are new: looked for without the lock, they would be looked for twice. The first block
// tells; then all others count as missing, and those that have a row are found and counted by the insertion.
std::vector<uint32_t> LookAtFew(const EmbeddingTable& table, const int64_t* keys, size_t n, float** rows) {
  std::vector<uint32_t> missing;
  if (table.admission() != nullptr || n < 4 * kSample) return missing;  // counters must know which keys have rows
  table.Find(keys, kSample, rows);
  if (static_cast<size_t>(std::count(rows, rows + kSample, nullptr)) < kSample * 7 / 8) return missing;
  std::fill(rows, rows + n, nullptr);
  missing.resize(n);
  std::iota(missing.begin(), missing.end(), 0u);
  return missing;
}

// Positions of the keys that have no row (or may have none); the others are counted.
std::vector<uint32_t> Look(const EmbeddingTable& table, const int64_t* keys, size_t n, float** rows,
                           const Parallel& parallel) {
  if (std::vector<uint32_t> missing = LookAtFew(table, keys, n, rows); !missing.empty()) return missing;
  const RowLayout& layout = table.layout();
  const uint32_t mark = table.this_mark();
  const size_t tasks = (n + kTaskKeys - 1) / kTaskKeys;
  std::vector<std::vector<uint32_t>> missing(tasks);
  RunTasks(parallel, tasks, [&](size_t task) {
    const size_t end = std::min(n, (task + 1) * kTaskKeys);
    for (size_t at = task * kTaskKeys; at < end; at += EmbeddingTable::kFindBlock) {
      const size_t count = std::min(end - at, EmbeddingTable::kFindBlock);
      table.Find(keys + at, count, rows + at);
      for (size_t i = at; i < at + count; ++i) {
        if (rows[i] == nullptr) {
          missing[task].push_back(static_cast<uint32_t>(i));
        } else {
          CountRow(layout, rows[i], 1, mark);
        }
      }
    }
  });
  if (tasks == 1) return std::move(missing[0]);
  std::vector<uint32_t> all;
  for (const std::vector<uint32_t>& part : missing) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Distinct keys of the missing positions.
struct Distinct {
  std::vector<int64_t> keys;
  std::vector<uint32_t> counts;
  std::vector<uint32_t> of;  // by missing position: which of `keys`

  Distinct(const TableState& table, const int64_t* all, const std::vector<uint32_t>& missing) : of(missing.size()) {
    size_t size = 16;
    while (size < missing.size() * 2) size *= 2;
    std::vector<uint32_t> buckets(size, UINT32_MAX);
    for (size_t i = 0; i < missing.size(); ++i) {
      const int64_t key = all[missing[i]];
      size_t at = PlaceOf(key, table.salt, 1).place & (size - 1);
      while (buckets[at] != UINT32_MAX && keys[buckets[at]] != key) at = (at + 1) & (size - 1);
      if (buckets[at] == UINT32_MAX) {
        buckets[at] = static_cast<uint32_t>(keys.size());
        keys.push_back(key);
        counts.push_back(0);
      }
      of[i] = buckets[at];
      if (counts[of[i]] != UINT32_MAX) ++counts[of[i]];
    }
  }
};

// Keys to insert: those of keys[i] for i in `positions` whose rows[i] is still null.
struct Insertion {
  TableState* table;
  const int64_t* keys;
  const uint32_t* counts;  // by position; null = 1 each
  float** rows;
  Now now;

  void InitialMetadata(float* row, uint32_t count) const {
    const RowLayout& layout = table->config.layout;
    if (layout.has_frequency()) StoreRelaxed(layout.frequency(row), count);
    if (layout.has_last_step()) StoreRelaxed(layout.last_step(row), now.step);
    if (layout.has_last_time()) StoreRelaxed(layout.last_time_ms(row), now.time_ms);
    if (layout.has_change()) StoreRelaxed(layout.change(row), Mark());
  }

  uint32_t Mark() const { return table->this_mark.load(std::memory_order_relaxed); }

  void Flush(ShardWriter* writer) const {
    table->initializer.Fill(writer->keys(), writer->count(), writer->rows());
    for (size_t i = 0; i < writer->count(); ++i) table->InitialSlots(writer->rows()[i]);
    writer->Publish();
  }

  Status Run(size_t shard, const uint32_t* begin, const uint32_t* end) const {
    const RowLayout& layout = table->config.layout;
    ShardWriter writer(table, shard);
    for (const uint32_t* at = begin; at != end;) {
      if (end - at > static_cast<ptrdiff_t>(kAhead)) writer.Prefetch(table->Place(keys[at[kAhead]]).place);
      const int64_t key = keys[*at];
      if (rows[*at] != nullptr) {
        ++at;
        continue;
      }
      bool created = false;
      float* const row = writer.Place(key, table->Place(key).place, &created);
      if (row == nullptr) {
        Flush(&writer);
        TFCTR_RETURN_IF_ERROR(writer.MakeRoom());
        continue;
      }
      const uint32_t count = counts == nullptr ? 1 : counts[*at];
      if (created) {
        InitialMetadata(row, count);
      } else {
        CountRow(layout, row, count, Mark());
      }
      rows[*at] = row;
      ++at;
    }
    Flush(&writer);
    return Status::Ok();
  }

  Status RunAll(const ByShard& by_shard, const Parallel& parallel) const {
    std::vector<size_t> shards;
    for (size_t s = 0; s < by_shard.shards(); ++s) {
      if (!by_shard.empty(s)) shards.push_back(s);
    }
    std::vector<Status> done(shards.size());
    RunTasks(parallel, shards.size(), [&](size_t task) {
      done[task] = Run(shards[task], by_shard.begin(shards[task]), by_shard.end(shards[task]));
    });
    for (Status& status : done) TFCTR_RETURN_IF_ERROR(std::move(status));
    return Status::Ok();
  }
};

// The keys of a call that have no row, until they have one.
class Missing {
 public:
  Missing(EmbeddingTable* self, TableState* table, const int64_t* keys, std::vector<uint32_t> positions, Now now,
          float** rows)
      : self_(self), table_(table), keys_(keys), positions_(std::move(positions)), now_(now), rows_(rows) {}

  // Counts, at the first time; then inserts what is admitted. May be called again after kNoSpace.
  Status Insert(const Parallel& parallel) {
    if (self_->admission() == nullptr) {
      const ByShard by_shard(*table_, keys_, positions_.data(), positions_.size());
      return Insertion{table_, keys_, nullptr, rows_, now_}.RunAll(by_shard, parallel);
    }
    std::lock_guard<std::mutex> lock(table_->admission);
    if (distinct_ == nullptr) {
      Count();
    } else {
      CountAgain();
    }
    const ByShard by_shard(*table_, distinct_->keys.data(), admitted_.data(), admitted_.size());
    const Status status =
        Insertion{table_, distinct_->keys.data(), distinct_->counts.data(), distinct_rows_.data(), now_}.RunAll(
            by_shard, parallel);
    std::vector<int64_t> inserted;
    for (const uint32_t i : admitted_) {
      if (distinct_rows_[i] != nullptr) inserted.push_back(distinct_->keys[i]);
    }
    self_->admission()->Forget(inserted.data(), inserted.size());
    for (size_t i = 0; i < positions_.size(); ++i) rows_[positions_[i]] = distinct_rows_[distinct_->of[i]];
    if (status.ok() && table_->config.max_bytes != 0 && table_->Bytes() > table_->config.max_bytes) {
      return table_->NoSpace("counters");
    }
    return status;
  }

  // Rows that are still to be inserted; at least 1.
  size_t Left() const {
    size_t left = 0;
    if (distinct_ == nullptr) {
      for (const uint32_t i : positions_) left += rows_[i] == nullptr;
    } else {
      for (const uint32_t i : admitted_) left += distinct_rows_[i] == nullptr;
    }
    return std::max<size_t>(left, 1);
  }

 private:
  // Under the admission mutex no other call counts, admits or inserts: a key that has a row now keeps it, and the
  // occurrences are the row's; the others' counts and rows go together.
  void Count() {
    distinct_ = std::make_unique<Distinct>(*table_, keys_, positions_);
    const size_t n = distinct_->keys.size();
    distinct_rows_.resize(n);
    FindDistinct();
    const RowLayout& layout = self_->layout();
    std::vector<uint32_t> without;
    std::vector<int64_t> keys;
    std::vector<uint32_t> counts;
    for (size_t i = 0; i < n; ++i) {
      if (distinct_rows_[i] == nullptr) {
        without.push_back(static_cast<uint32_t>(i));
        keys.push_back(distinct_->keys[i]);
        counts.push_back(distinct_->counts[i]);
      } else {
        CountRow(layout, distinct_rows_[i], distinct_->counts[i], self_->this_mark());
      }
    }
    std::vector<uint8_t> admitted(without.size());
    std::vector<uint32_t> totals(without.size());
    if (!without.empty()) {
      self_->admission()->Add(keys.data(), counts.data(), keys.size(), now_, admitted.data(), totals.data());
    }
    for (size_t i = 0; i < without.size(); ++i) {
      if (admitted[i] == 0) continue;
      admitted_.push_back(without[i]);
      distinct_->counts[without[i]] = totals[i];
    }
  }

  // The gate keeps these rows; the guard is for the probing.
  void FindDistinct() {
    const ReadGuard probing(*self_);
    self_->Find(distinct_->keys.data(), distinct_->keys.size(), distinct_rows_.data());
  }

  // While there was no room, other calls may have counted and inserted these keys.
  void CountAgain() {
    FindDistinct();
    for (const uint32_t i : admitted_) {
      uint32_t& count = distinct_->counts[i];
      count = std::max(count, self_->admission()->Count(distinct_->keys[i]));
    }
  }

  EmbeddingTable* const self_;
  TableState* const table_;
  const int64_t* const keys_;
  const std::vector<uint32_t> positions_;
  const Now now_;
  float** const rows_;
  std::unique_ptr<Distinct> distinct_;  // only with admission
  std::vector<float*> distinct_rows_;
  std::vector<uint32_t> admitted_;  // of the distinct keys
};

constexpr int kMostRooms = 256;  // of a call: then other threads are using what it makes

}  // namespace

Status EmbeddingTable::FindOrInsert(ReadGuard* guard, const int64_t* keys, size_t n, Now now, float** rows,
                                    const Parallel& parallel) {
  if (n > UINT32_MAX) {
    return Status::Invalid("table '" + name() + "': a lookup of " + std::to_string(n) + " keys; expected at most " +
                           std::to_string(UINT32_MAX));
  }
  state_->Reclaim();
  std::shared_lock<UpdateGate> gate(state_->gate);
  std::vector<uint32_t> positions = Look(*this, keys, n, rows, parallel);
  if (positions.empty()) return Status::Ok();
  Missing missing(this, state_.get(), keys, std::move(positions), now, rows);
  // The gate keeps the rows that were found from being erased; without the guard an index that is outgrown is freed at
  // once, not at the end of the call.
  guard->Leave();
  uint64_t rooms = state_->rooms.load(std::memory_order_relaxed);
  Status status = missing.Insert(parallel);
  bool room_made = false;
  for (int tries = 0; status.code == Code::kNoSpace && tries < kMostRooms; ++tries) {
    gate.unlock();
    room_made = state_->MakeRoomFor(this, missing.Left(), rooms);
    gate.lock();
    if (!room_made) break;
    rooms = state_->rooms.load(std::memory_order_relaxed);
    status = missing.Insert(parallel);
  }
  guard->Enter();
  if (room_made && status.ok()) Find(keys, n, rows);  // some rows of this call may have been erased for others
  return status;
}

}  // namespace tfctr
