#include "tfctr/core/storage/table_snapshot.h"

#include <utility>

#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/table_internal.h"

namespace tfctr {

TableSnapshot::TableSnapshot(std::shared_ptr<EmbeddingTable> table) : table_(std::move(table)) {
  table_->impl_->structure.lock();
  for (EmbeddingTable::Impl::Shard& shard : table_->impl_->shards) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.log = true;
    shard_rows_.push_back(shard.rows.size());
    rows_ += shard.rows.size();
  }
}

TableSnapshot::~TableSnapshot() {
  for (EmbeddingTable::Impl::Shard& shard : table_->impl_->shards) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.log = false;
    shard.added.clear();
  }
  table_->impl_->structure.unlock();
}

void TableSnapshot::ReadShard(int shard, RowBlock* block) {
  EmbeddingTable::Impl::Shard& from = table_->impl_->shards[static_cast<size_t>(shard)];
  const RowLayout& layout = table_->layout();
  const size_t dim = static_cast<size_t>(layout.dim());
  const size_t rows = shard_rows(shard);
  std::unique_lock<std::shared_mutex> gate(table_->impl_->gate);
  std::lock_guard<std::mutex> lock(from.mutex);
  block->rows = rows;
  block->keys.resize(rows);
  block->values.resize(rows * dim);
  block->slots.resize(layout.slots().size());
  for (size_t s = 0; s < layout.slots().size(); ++s) {
    block->slots[s].resize(rows * static_cast<size_t>(layout.slots()[s].width));
  }
  block->frequency.resize(layout.has_frequency() ? rows : 0);
  block->last_step.resize(layout.has_last_step() ? rows : 0);
  block->last_time_ms.resize(layout.has_last_time() ? rows : 0);
  size_t at = 0;
  for (const auto& entry : from.rows) {
    if (from.added.count(entry.first) != 0) continue;
    const float* row = entry.second;
    block->keys[at] = entry.first;
    ReadRow(block->values.data() + at * dim, row, dim);
    for (size_t s = 0; s < layout.slots().size(); ++s) {
      const size_t width = static_cast<size_t>(layout.slots()[s].width);
      ReadRow(block->slots[s].data() + at * width, layout.slot(row, s), width);
    }
    if (layout.has_frequency()) block->frequency[at] = LoadRelaxed(layout.frequency(row));
    if (layout.has_last_step()) block->last_step[at] = LoadRelaxed(layout.last_step(row));
    if (layout.has_last_time()) block->last_time_ms[at] = LoadRelaxed(layout.last_time_ms(row));
    ++at;
  }
}

}  // namespace tfctr
