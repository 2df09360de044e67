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

void TableSnapshot::ReadShard(int shard, RowBlock* block) {
  TableShard& from = table_->state_->shards[static_cast<size_t>(shard)];
  const RowLayout& layout = table_->layout();
  const size_t dim = static_cast<size_t>(layout.dim());
  block->Resize(layout, shard_rows(shard));
  std::unique_lock<UpdateGate> gate(table_->state_->gate);
  std::lock_guard<std::mutex> lock(from.mutex);
  std::sort(from.logged.begin(), from.logged.end());
  const bool any_new = !from.logged.empty();
  size_t at = 0;
  VisitRows(*table_->state_->Index(static_cast<size_t>(shard)), layout.stride(), [&](int64_t key, const float* row) {
    if (any_new && std::binary_search(from.logged.begin(), from.logged.end(), row)) return;
    block->keys[at] = key;
    ReadRow(block->values.data() + at * dim, row, dim);
    for (size_t s = 0; s < layout.slots().size(); ++s) {
      const size_t width = static_cast<size_t>(layout.slots()[s].width);
      ReadRow(block->slots[s].data() + at * width, layout.slot(row, s), width);
    }
    if (layout.has_frequency()) block->frequency[at] = LoadRelaxed(layout.frequency(row));
    if (layout.has_last_step()) block->last_step[at] = LoadRelaxed(layout.last_step(row));
    if (layout.has_last_time()) block->last_time_ms[at] = LoadRelaxed(layout.last_time_ms(row));
    ++at;
  });
  StopLog(&from);
}

}  // namespace tfctr
