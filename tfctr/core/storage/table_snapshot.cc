#include "tfctr/core/storage/table_snapshot.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/table_internal.h"

namespace tfctr {
namespace {

void StopLog(TableShard* shard) {
  shard->logging = false;
  std::vector<const float*>().swap(shard->logged);
}

void PrefetchRow(const float* row, size_t bytes) {
  for (size_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
}

// Everything of a row but its key to place `at` of the block. Nothing updates it meanwhile.
void CopyRow(const RowLayout& layout, const float* row, size_t at, RowBlock* block) {
  const size_t dim = static_cast<size_t>(layout.dim());
  ReadRow(block->values.data() + at * dim, row, dim);
  for (size_t s = 0; s < layout.slots().size(); ++s) {
    const size_t width = static_cast<size_t>(layout.slots()[s].width);
    ReadRow(block->slots[s].data() + at * width, layout.slot(row, s), width);
  }
  if (layout.has_frequency()) block->frequency[at] = LoadRelaxed(layout.frequency(row));
  if (layout.has_last_step()) block->last_step[at] = LoadRelaxed(layout.last_step(row));
  if (layout.has_last_time()) block->last_time_ms[at] = LoadRelaxed(layout.last_time_ms(row));
}

}  // namespace

void RowBlock::Resize(const RowLayout& layout, size_t n) {
  rows = n;
  keys.resize(n);
  values.resize(n * static_cast<size_t>(layout.dim()));
  slots.resize(layout.slots().size());
  for (size_t s = 0; s < slots.size(); ++s) slots[s].resize(n * static_cast<size_t>(layout.slots()[s].width));
  frequency.resize(layout.has_frequency() ? n : 0);
  last_step.resize(layout.has_last_step() ? n : 0);
  last_time_ms.resize(layout.has_last_time() ? n : 0);
}

TableSnapshot::TableSnapshot(std::shared_ptr<EmbeddingTable> table) : table_(std::move(table)) {
  table_->state_->structure.lock();
  for (TableShard& shard : table_->state_->shards) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.logging = true;
    shard_rows_.push_back(shard.live);
    rows_ += shard.live;
  }
}

TableSnapshot::~TableSnapshot() {
  for (TableShard& shard : table_->state_->shards) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    StopLog(&shard);
  }
  table_->state_->structure.unlock();
}

ChangedRows TableSnapshot::Changes(uint32_t mark, size_t most_rows) {
  const RowLayout& layout = table_->layout();
  const size_t at = layout.change_offset();
  ChangedRows changed;
  for (size_t s = 0; s < shard_rows_.size() && changed.known; ++s) {
    TableShard& shard = table_->state_->shards[s];
    std::lock_guard<std::mutex> lock(shard.mutex);
    changed.known = shard.removed.Since(mark, &changed.removed);
    VisitRows(
        *table_->state_->Index(s), at + 1,
        [&](int64_t key, const float* row) {
          if (LoadRelaxed(layout.change(row)) <= mark || changed.rows.size() > most_rows) return;
          changed.keys.push_back(key);
          changed.rows.push_back(row);
        },
        at);
    changed.known = changed.known && changed.rows.size() <= most_rows;
  }
  if (!changed.known) {
    changed = ChangedRows();
    changed.known = false;
    return changed;
  }
  for (TableShard& shard : table_->state_->shards) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    StopLog(&shard);
  }
  return changed;
}

void TableSnapshot::ReadRows(const ChangedRows& changed, size_t begin, size_t n, RowBlock* block) {
  constexpr size_t kAhead = 8;
  block->Resize(table_->layout(), n);
  std::copy_n(changed.keys.begin() + static_cast<ptrdiff_t>(begin), n, block->keys.begin());
  const float* const* const rows = changed.rows.data() + begin;
  std::unique_lock<UpdateGate> gate(table_->state_->gate);
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) PrefetchRow(rows[i + kAhead], table_->layout().stride());
    CopyRow(table_->layout(), rows[i], i, block);
  }
}

void TableSnapshot::ReadShard(int shard, RowBlock* block) {
  TableShard& from = table_->state_->shards[static_cast<size_t>(shard)];
  const RowLayout& layout = table_->layout();
  block->Resize(layout, shard_rows(shard));
  std::unique_lock<UpdateGate> gate(table_->state_->gate);
  std::lock_guard<std::mutex> lock(from.mutex);
  std::sort(from.logged.begin(), from.logged.end());
  const bool any_new = !from.logged.empty();
  size_t at = 0;
  VisitRows(*table_->state_->Index(static_cast<size_t>(shard)), layout.stride(), [&](int64_t key, const float* row) {
    if (any_new && std::binary_search(from.logged.begin(), from.logged.end(), row)) return;
    block->keys[at] = key;
    CopyRow(layout, row, at, block);
    ++at;
  });
  StopLog(&from);
}

}  // namespace tfctr
