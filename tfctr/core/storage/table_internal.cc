#include "tfctr/core/storage/table_internal.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>

#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/salt.h"

namespace tfctr {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);
constexpr size_t kLargestBlock = size_t{256} << 10;  // bytes of rows that a shard takes at a time

}  // namespace

TableState::TableState(TableConfig c)
    : config(std::move(c)),
      initializer(config.init, config.layout.dim()),
      salt(NewSalt()),
      shards(static_cast<size_t>(config.shards)),
      indexes(static_cast<size_t>(config.shards)),
      arena(config.layout.stride()),
      instance(static_cast<int64_t>(NewSalt())) {
  for (const SlotSpec& slot : config.layout.slots()) {
    slot_floats.insert(slot_floats.end(), static_cast<size_t>(slot.width), slot.initial);
    zero_slots = zero_slots && slot.initial == 0.0f;
  }
}

TableState::~TableState() {
  for (std::atomic<IndexArray*>& index : indexes) index_memory.Delete(index.load(std::memory_order_relaxed));
  for (const Retired& retire : retired) index_memory.Delete(retire.index);
}

uint64_t TableState::CounterBytes() const { return config.admission == nullptr ? 0 : config.admission->bytes(); }

bool TableState::Charge(uint64_t more, int64_t headroom) {
  const uint64_t counters = config.max_bytes == 0 ? 0 : CounterBytes();
  const uint64_t before = used_bytes.fetch_add(more, std::memory_order_relaxed);
  const uint64_t wanted = before + more + counters + static_cast<uint64_t>(headroom);
  if (config.max_bytes == 0 || wanted <= config.max_bytes) return true;
  Discharge(more);
  return false;
}

Status TableState::NoSpace(const char* what) const {
  const std::string uses = "table '" + config.name + "' uses " + std::to_string(Bytes()) + " bytes";
  if (config.max_bytes == 0) {
    return Status::NoSpace(uses + ", and the operating system has no memory for more " + what);
  }
  return Status::NoSpace(uses + " of max_bytes = " + std::to_string(config.max_bytes) +
                         ", and there is no room for more " + what +
                         "; raise max_bytes, or give the variable a CapacityEviction that makes room");
}

size_t TableState::NextCapacity(size_t shard, size_t capacity) const {
  const double least = static_cast<double>(capacity) * 1.15;
  const double phase = static_cast<double>(shard) / static_cast<double>(shards.size());
  double next = static_cast<double>(kFirstCapacity) * std::pow(kGrowth, phase);
  while (next < least) next *= kGrowth;
  return static_cast<size_t>(next);
}

bool TableState::Rebuild(size_t at, size_t capacity, int64_t headroom) {
  TableShard& shard = shards[at];
  IndexArray* const old = Index(at);
  for (;; capacity += capacity / 8 + 1) {
    const size_t bytes = IndexArray::Bytes(capacity);
    if (!Charge(bytes, headroom)) return false;
    IndexArray* const array = index_memory.New(capacity);
    if (array == nullptr) {
      Discharge(bytes);
      return false;
    }
    bool fits = true;
    const IndexEntry* const last = array->end() - 1;  // stays empty
    for (const IndexEntry *from = old == nullptr ? last : old->begin(), *end = old == nullptr ? last : old->end();
         from != end && fits; ++from) {
      if (!IsLive(from->row)) continue;
      IndexEntry* to = array->begin() + array->Home(Place(from->key).place);
      while (to->row != 0) ++to;
      fits = to != last;
      to->key = from->key;
      to->row = from->row;
    }
    if (!fits) {  // the last cluster ran over the tail
      index_memory.Delete(array);
      Discharge(bytes);
      continue;
    }
    shard.used = shard.live;
    indexes[at].store(array, std::memory_order_release);
    if (old != nullptr) RetireIndex(old);
    uint64_t largest = largest_index.load(std::memory_order_relaxed);
    while (largest < bytes && !largest_index.compare_exchange_weak(largest, bytes, std::memory_order_relaxed)) {
    }
    return true;
  }
}

// A table at its limit lives on by erasing, so it must always be able to get rid of erased entries: an index grows only
// if there is room left to rebuild one, and rows are taken only within that (NewRow). Counters may grow into this room;
// they don't count against a rebuild, which gives back what it takes.
Status TableState::MakeIndexRoom(size_t at, bool may_fill) {
  std::unique_lock<std::mutex> one(rebuilds, std::defer_lock);
  if (config.max_bytes != 0) one.lock();
  const TableShard& shard = shards[at];
  const IndexArray& index = *Index(at);
  const size_t erased = shard.used - shard.live;
  // Cleaning moves an entry or more for each that it frees: worth while where those are many.
  const bool fill = may_fill && shard.used < static_cast<size_t>(static_cast<double>(index.capacity) * kHardLoad);
  const bool clean = erased > index.capacity / (fill ? 16 : 64);
  if (!clean || erased * 4 <= shard.used) {
    const size_t larger = NextCapacity(at, index.capacity);
    const uint64_t largest = std::max(IndexArray::Bytes(larger), largest_index.load(std::memory_order_relaxed));
    if (Rebuild(at, larger, static_cast<int64_t>(largest - index.bytes))) return Status::Ok();
  }
  if (clean && Rebuild(at, index.capacity, -static_cast<int64_t>(CounterBytes()))) return Status::Ok();
  return fill ? Status::Ok() : NoSpace("index entries");
}

float* TableState::NewRow(TableShard* shard) {
  if (shard->fresh_rows == 0 && shard->spare.empty()) {
    const size_t stride = config.layout.stride();
    const size_t most = std::max<size_t>(kLargestBlock / stride, 1);
    size_t rows = std::min(std::max<size_t>(shard->live / 64, 4), most);
    {
      std::lock_guard<std::mutex> lock(free_mutex);
      const size_t again = std::min(rows, free_rows.size());
      shard->spare.assign(free_rows.end() - static_cast<ptrdiff_t>(again), free_rows.end());
      free_rows.resize(free_rows.size() - again);
      if (free_rows.empty()) std::vector<float*>().swap(free_rows);
    }
    if (shard->spare.empty()) {
      // Room for the next index array of a shard is kept.
      const int64_t headroom = static_cast<int64_t>(largest_index.load(std::memory_order_relaxed) * 3 / 2);
      while (!Charge(rows * stride, headroom)) {
        if (rows == 1) return nullptr;
        rows /= 2;
      }
      const RowArena::Block block = arena.Take(rows);
      Discharge((rows - block.rows) * stride);
      if (block.rows == 0) return nullptr;
      shard->fresh = block.begin;
      shard->fresh_rows = block.rows;
    }
  }
  if (!shard->spare.empty()) {
    float* const row = shard->spare.back();
    shard->spare.pop_back();
    return row;
  }
  float* const row = reinterpret_cast<float*>(shard->fresh);
  shard->fresh += config.layout.stride();
  --shard->fresh_rows;
  return row;
}

void TableState::InitialSlots(float* row) const {
  if (!slot_floats.empty()) WriteRow(row + config.layout.dim(), slot_floats.data(), slot_floats.size());
}

void TableState::Retire(std::vector<float*> rows) {
  if (rows.empty()) return;
  const uint64_t tag = epochs.Tag();
  std::lock_guard<std::mutex> lock(retired_mutex);
  retired.push_back(Retired{tag, std::move(rows), nullptr});
  any_retired.store(true, std::memory_order_release);
}

void TableState::RetireIndex(IndexArray* array) {
  const uint64_t tag = epochs.Tag();
  if (tag < epochs.Oldest()) {
    Discharge(array->bytes);
    index_memory.Delete(array);
    return;
  }
  std::lock_guard<std::mutex> lock(retired_mutex);
  retired.push_back(Retired{tag, {}, array});
  any_retired.store(true, std::memory_order_release);
}

bool TableState::Reclaim() {
  if (!any_retired.load(std::memory_order_acquire)) return false;
  std::vector<Retired> gone;
  {
    std::lock_guard<std::mutex> lock(retired_mutex);
    const uint64_t oldest = epochs.Oldest();
    const auto seen =
        std::partition(retired.begin(), retired.end(), [oldest](const Retired& r) { return r.tag >= oldest; });
    std::move(seen, retired.end(), std::back_inserter(gone));
    retired.erase(seen, retired.end());
    any_retired.store(!retired.empty(), std::memory_order_release);
  }
  for (Retired& each : gone) {
    if (each.index != nullptr) {
      Discharge(each.index->bytes);
      index_memory.Delete(each.index);
      continue;
    }
    std::lock_guard<std::mutex> lock(free_mutex);
    free_rows.insert(free_rows.end(), each.rows.begin(), each.rows.end());
  }
  return !gone.empty();
}

bool TableState::MakeRoomFor(EmbeddingTable* self, size_t rows, uint64_t rooms_seen) {
  // One at a time: two would choose the same rows.
  std::lock_guard<std::mutex> lock(room_mutex);
  const auto until = std::chrono::steady_clock::now() + kPatience;
  for (bool asked = false;; asked = true) {
    while (any_retired.load(std::memory_order_acquire)) {
      if (Reclaim()) return true;
      if (std::chrono::steady_clock::now() > until) return false;  // a reader does not leave
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    // Another call made room since the caller last tried, or somebody else reclaimed what this one made.
    if (asked || rooms.load(std::memory_order_relaxed) != rooms_seen) return true;
    if (make_room == nullptr || make_room(self, rows) == 0) return false;
    rooms.fetch_add(1, std::memory_order_relaxed);
  }
}

ShardWriter::ShardWriter(TableState* table, size_t shard)
    : table_(table), at_(shard), shard_(&table->shards[shard]), lock_(shard_->mutex), index_(table->Index(shard)) {
  limit_ = static_cast<size_t>(static_cast<double>(index_->capacity) * kMaxLoad);
}

float* ShardWriter::Place(int64_t key, uint64_t place, bool* created) {
  *created = false;
  IndexEntry* free = nullptr;
  IndexEntry* at = index_->begin() + index_->Home(place);
  for (;; ++at) {
    if (at->row == 0) break;
    if (at->row == kErased) {
      if (free == nullptr) free = at;
    } else if (at->key == key) {
      return RowOf(at->row);
    }
  }
  if (count_ == kBatch) return Lacks(Lack::kBatch);
  if (free == nullptr) {
    if (shard_->used >= limit_) return Lacks(Lack::kEntries);
    if (at == index_->end() - 1) return Lacks(Lack::kTail);
    free = at;
  }
  float* const row = table_->NewRow(shard_);
  if (row == nullptr) return Lacks(Lack::kRow);
  if (free == at) ++shard_->used;
  ++shard_->live;
  free->SetKey(key);
  free->SetRow(reinterpret_cast<uintptr_t>(row) | kPending);
  keys_[count_] = key;
  rows_[count_] = row;
  entries_[count_] = free;
  ++count_;
  *created = true;
  return row;
}

void ShardWriter::Publish() {
  if (count_ == 0) return;
  for (size_t i = 0; i < count_; ++i) entries_[i]->SetRow(reinterpret_cast<uintptr_t>(rows_[i]));
  if (shard_->logging) shard_->logged.insert(shard_->logged.end(), rows_, rows_ + count_);
  shard_->rows.store(shard_->live, std::memory_order_relaxed);
  count_ = 0;
}

Status ShardWriter::MakeRoom() {
  if (lack_ == Lack::kBatch) return Status::Ok();
  if (lack_ == Lack::kRow) return table_->NoSpace("rows");
  const IndexArray* const before = index_;
  TFCTR_RETURN_IF_ERROR(table_->MakeIndexRoom(at_, lack_ == Lack::kEntries));
  index_ = table_->Index(at_);
  const bool same = index_ == before;
  limit_ = static_cast<size_t>(static_cast<double>(index_->capacity) * (same ? kHardLoad : kMaxLoad));
  return Status::Ok();
}

ByShard::ByShard(const TableState& table, const int64_t* keys, const uint32_t* positions, size_t n)
    : positions_(n), starts_(table.shards.size() + 1) {
  std::vector<uint16_t> of(n);
  for (size_t i = 0; i < n; ++i) {
    of[i] = static_cast<uint16_t>(table.Place(keys[positions == nullptr ? i : positions[i]]).shard);
    ++starts_[of[i] + 1u];
  }
  for (size_t s = 0; s + 1 < starts_.size(); ++s) starts_[s + 1] += starts_[s];
  std::vector<size_t> next(starts_.begin(), starts_.end() - 1);
  for (size_t i = 0; i < n; ++i)
    positions_[next[of[i]]++] = positions == nullptr ? static_cast<uint32_t>(i) : positions[i];
}

void RunTasks(const Parallel& parallel, size_t tasks, const std::function<void(size_t)>& task) {
  if (parallel != nullptr && tasks > 1) {
    parallel(tasks, task);
  } else {
    for (size_t i = 0; i < tasks; ++i) task(i);
  }
}

}  // namespace tfctr
