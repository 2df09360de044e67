// Bulk writes, erasing and visiting.
#include <algorithm>
#include <shared_mutex>

#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/table_internal.h"

namespace tfctr {
namespace {

constexpr size_t kPutKeys = size_t{1} << 20;    // sorted by shard at a time
constexpr size_t kEraseKeys = size_t{1} << 13;  // of a shard under the gate at a time
constexpr size_t kAhead = 16;

// Made under the gate.
class PutTask {
 public:
  PutTask(TableState* table, const int64_t* keys, const RowColumns& columns)
      : table_(table),
        layout_(table->config.layout),
        keys_(keys),
        columns_(columns),
        mark_(table->this_mark.load(std::memory_order_relaxed)) {
    for (size_t s = 0; s < layout_.slots().size(); ++s) {
      whole_ = whole_ && s < columns.slots.size() && columns.slots[s] != nullptr;
    }
  }

  Status Run(size_t shard, const uint32_t* begin, const uint32_t* end) const {
    ShardWriter writer(table_, shard);
    Again again;
    for (const uint32_t* at = begin; at != end;) {
      if (end - at > static_cast<ptrdiff_t>(kAhead)) Prefetch(writer, at[kAhead]);
      bool created = false;
      float* const row = writer.Place(keys_[*at], table_->Place(keys_[*at]).place, &created);
      if (row == nullptr) {
        Flush(&writer);
        TFCTR_RETURN_IF_ERROR(writer.MakeRoom());
        continue;
      }
      Write(row, *at);
      if (!created && columns_.values == nullptr && again.Add(keys_[*at], row)) Initial(&again);
      ++at;
    }
    Flush(&writer);
    Initial(&again);
    return Status::Ok();
  }

 private:
  // Rows that were there and become initial.
  struct Again {
    size_t count = 0;
    int64_t keys[ShardWriter::kBatch];
    float* rows[ShardWriter::kBatch];
    std::vector<float> values;

    // True when it is full.
    bool Add(int64_t key, float* row) {
      keys[count] = key;
      rows[count] = row;
      return ++count == ShardWriter::kBatch;
    }
  };

  // By way of values of its own: others may be reading these rows.
  void Initial(Again* again) const {
    const size_t dim = static_cast<size_t>(layout_.dim());
    again->values.resize(ShardWriter::kBatch * dim);
    float* to[ShardWriter::kBatch];
    for (size_t i = 0; i < again->count; ++i) to[i] = again->values.data() + i * dim;
    table_->initializer.Fill(again->keys, again->count, to);
    for (size_t i = 0; i < again->count; ++i) WriteRow(again->rows[i], to[i], dim);
    again->count = 0;
  }

  void Prefetch(const ShardWriter& writer, uint32_t i) const {
    writer.Prefetch(table_->Place(keys_[i]).place);
    if (columns_.values == nullptr) return;
    const size_t dim = static_cast<size_t>(layout_.dim());
    __builtin_prefetch(columns_.values + i * dim);
    __builtin_prefetch(columns_.values + i * dim + dim - 1);
  }

  // Values that are not in the columns are computed by the batch: by Flush for new rows, by Initial for others.
  void Write(float* row, uint32_t i) const {
    const size_t dim = static_cast<size_t>(layout_.dim());
    if (columns_.values != nullptr) WriteRow(row, columns_.values + i * dim, dim);
    if (!whole_) table_->InitialSlots(row);
    for (size_t s = 0; s < std::min(columns_.slots.size(), layout_.slots().size()); ++s) {
      const size_t width = static_cast<size_t>(layout_.slots()[s].width);
      if (columns_.slots[s] != nullptr) WriteRow(layout_.slot(row, s), columns_.slots[s] + i * width, width);
    }
    if (layout_.has_frequency()) {
      StoreRelaxed(layout_.frequency(row), columns_.frequency == nullptr ? 0u : columns_.frequency[i]);
    }
    if (layout_.has_last_step()) {
      StoreRelaxed(layout_.last_step(row), columns_.last_step == nullptr ? int64_t{0} : columns_.last_step[i]);
    }
    if (layout_.has_last_time()) {
      StoreRelaxed(layout_.last_time_ms(row), columns_.last_time_ms == nullptr ? int64_t{0} : columns_.last_time_ms[i]);
    }
    if (layout_.has_change()) StoreRelaxed(layout_.change(row), mark_);
  }

  void Flush(ShardWriter* writer) const {
    if (columns_.values == nullptr) table_->initializer.Fill(writer->keys(), writer->count(), writer->rows());
    writer->Publish();
  }

  TableState* const table_;
  const RowLayout& layout_;
  const int64_t* const keys_;
  const RowColumns& columns_;
  const uint32_t mark_;
  bool whole_ = true;  // every slot has a column
};

// The entry of a key, or null. The shard's mutex is held.
IndexEntry* Entry(IndexArray* index, int64_t key, uint64_t place) {
  for (IndexEntry* at = index->begin() + index->Home(place); at->row != 0; ++at) {
    if (at->key == key && IsLive(at->row)) return at;
  }
  return nullptr;
}

// Erased entries at the end of a cluster become empty: no probe goes past them.
void EraseEntry(IndexArray* index, IndexEntry* entry, TableShard* shard) {
  entry->SetRow(kErased);
  --shard->live;
  if ((entry + 1)->row != 0) return;
  for (; entry >= index->begin() && entry->row == kErased; --entry) {
    entry->SetRow(0);
    --shard->used;
  }
}

}  // namespace

Status EmbeddingTable::Put(const int64_t* keys, size_t n, const RowColumns& columns, const Parallel& parallel) {
  const size_t dim = static_cast<size_t>(layout().dim());
  for (size_t at = 0; at < n; at += kPutKeys) {
    state_->Reclaim();
    const size_t count = std::min(n - at, kPutKeys);
    RowColumns part = columns;
    if (part.values != nullptr) part.values += at * dim;
    for (size_t s = 0; s < std::min(part.slots.size(), layout().slots().size()); ++s) {
      if (part.slots[s] != nullptr) part.slots[s] += at * static_cast<size_t>(layout().slots()[s].width);
    }
    if (part.frequency != nullptr) part.frequency += at;
    if (part.last_step != nullptr) part.last_step += at;
    if (part.last_time_ms != nullptr) part.last_time_ms += at;
    const ByShard by_shard(*state_, keys + at, nullptr, count);
    std::vector<Status> done(by_shard.shards());
    std::shared_lock<UpdateGate> gate(state_->gate);
    const PutTask task(state_.get(), keys + at, part);
    std::unique_lock<std::mutex> admission(state_->admission, std::defer_lock);
    if (this->admission() != nullptr) admission.lock();
    RunTasks(parallel, by_shard.shards(), [&](size_t s) {
      if (!by_shard.empty(s)) done[s] = task.Run(s, by_shard.begin(s), by_shard.end(s));
    });
    for (Status& status : done) TFCTR_RETURN_IF_ERROR(std::move(status));
    if (this->admission() != nullptr) this->admission()->Forget(keys + at, count);
  }
  state_->Reclaim();
  return Status::Ok();
}

size_t EmbeddingTable::EraseIf(const int64_t* keys, size_t n,
                               const std::function<bool(int64_t key, const float* row)>& condemned) {
  std::lock_guard<HandoverMutex> structure(state_->structure);
  size_t erased = 0;
  for (size_t first = 0; first < n; first += kPutKeys) {
    const ByShard by_shard(*state_, keys + first, nullptr, std::min(n - first, kPutKeys));
    for (size_t s = 0; s < by_shard.shards(); ++s) {
      for (const uint32_t* at = by_shard.begin(s); at < by_shard.end(s); at += kEraseKeys) {
        const uint32_t* const end = std::min(at + kEraseKeys, by_shard.end(s));
        erased += state_->EraseOfShard(s, keys + first, at, end, condemned);
      }
    }
  }
  state_->Reclaim();
  return erased;
}

size_t TableState::EraseOfShard(size_t at, const int64_t* keys, const uint32_t* begin, const uint32_t* end,
                                const std::function<bool(int64_t key, const float* row)>& condemned) {
  TableShard& shard = shards[at];
  std::vector<float*> rows;
  std::unique_lock<UpdateGate> exclusive(gate);
  std::lock_guard<std::mutex> lock(shard.mutex);
  IndexArray* const index = Index(at);
  for (const uint32_t* i = begin; i != end; ++i) {
    if (end - i > static_cast<ptrdiff_t>(kAhead)) {
      __builtin_prefetch(index->begin() + index->Home(Place(keys[i[kAhead]]).place));
    }
    IndexEntry* const entry = Entry(index, keys[*i], Place(keys[*i]).place);
    if (entry == nullptr) continue;
    float* const row = RowOf(entry->row);
    if (!condemned(entry->key, row)) continue;
    EraseEntry(index, entry, &shard);
    rows.push_back(row);
    if (config.layout.has_change()) {
      shard.removed.Add(keys[*i], this_mark.load(std::memory_order_relaxed), shard.live);
    }
  }
  shard.rows.store(shard.live, std::memory_order_relaxed);
  const size_t erased = rows.size();
  Retire(std::move(rows));
  const size_t enough = static_cast<size_t>(static_cast<double>(shard.live) / kMaxLoad * kGrowth) + kFirstCapacity;
  if (erased != 0 && enough < index->capacity / 3) {
    Rebuild(at, NextCapacity(at, enough));  // stays as large as it is where that is refused
  }
  return erased;
}

void EmbeddingTable::ForEach(int shard, const std::function<void(int64_t key, const float* row)>& visit) const {
  const size_t at = static_cast<size_t>(shard);
  std::lock_guard<std::mutex> lock(state_->shards[at].mutex);
  VisitRows(*state_->Index(at), layout().stride(), visit);
}

}  // namespace tfctr
