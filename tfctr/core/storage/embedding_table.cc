#include "tfctr/core/storage/embedding_table.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>

#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/table_internal.h"

namespace tfctr {

EmbeddingTable::EmbeddingTable(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EmbeddingTable::~EmbeddingTable() = default;

Result<std::shared_ptr<EmbeddingTable>> EmbeddingTable::Create(TableConfig config) {
  const size_t dim = static_cast<size_t>(config.layout.dim());
  if (config.layout.dim() < 1) return Status::Invalid("table '" + config.name + "': the row layout has no dimension");
  if (config.shards < 1 || config.shards > 4096) {
    return Status::Invalid("table '" + config.name + "': " + std::to_string(config.shards) +
                           " shards; expected 1 to 4096");
  }
  if (!config.default_value.empty() && config.default_value.size() != dim) {
    return Status::Invalid("table '" + config.name + "': the default value has " +
                           std::to_string(config.default_value.size()) + " floats; expected " + std::to_string(dim));
  }
  config.default_value.resize(dim, 0.0f);
  auto impl = std::make_unique<Impl>(std::move(config));
  return std::shared_ptr<EmbeddingTable>(new EmbeddingTable(std::move(impl)));
}

const TableConfig& EmbeddingTable::config() const { return impl_->config; }
const float* EmbeddingTable::default_row() const { return impl_->config.default_value.data(); }
void EmbeddingTable::set_make_room(MakeRoom make_room) { impl_->make_room = std::move(make_room); }

void ReadGuard::Enter() {}
void ReadGuard::Leave() {}
void UpdateGuard::Enter() { table_->impl_->gate.lock_shared(); }
void UpdateGuard::Leave() { table_->impl_->gate.unlock_shared(); }

void EmbeddingTable::Find(const int64_t* keys, size_t n, float** rows) const {
  for (size_t i = 0; i < n; ++i) {
    Impl::Shard& shard = impl_->Of(keys[i]);
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto it = shard.rows.find(keys[i]);
    rows[i] = it == shard.rows.end() ? nullptr : it->second;
  }
}

Status EmbeddingTable::FindOrInsert(ReadGuard* guard, const int64_t* keys, size_t n, Now now, float** rows,
                                    const Parallel& parallel) {
  std::shared_lock<std::shared_mutex> gate(impl_->gate);
  std::lock_guard<std::mutex> admission(impl_->admission);
  std::vector<int64_t> missing;
  std::unordered_map<int64_t, size_t> at;
  std::vector<uint32_t> counts;
  Find(keys, n, rows);
  for (size_t i = 0; i < n; ++i) {
    if (rows[i] != nullptr) {
      if (layout().has_frequency()) AddSaturating(layout().frequency(rows[i]), 1);
      continue;
    }
    const auto inserted = at.emplace(keys[i], missing.size());
    if (inserted.second) {
      missing.push_back(keys[i]);
      counts.push_back(0);
    }
    ++counts[inserted.first->second];
  }
  std::vector<uint8_t> admitted(missing.size(), 1);
  std::vector<uint32_t> totals = counts;
  if (this->admission() != nullptr && !missing.empty()) {
    this->admission()->Add(missing.data(), counts.data(), missing.size(), now, admitted.data(), totals.data());
  }
  for (size_t i = 0; i < missing.size(); ++i) {
    if (!admitted[i]) continue;
    float* row = nullptr;
    TFCTR_RETURN_IF_ERROR(impl_->NewRow(missing[i], &row));
    RowInitializer(config().init, layout().dim()).Fill(&missing[i], 1, &row);
    impl_->InitialSlots(row);
    Touch(row, now);
    if (layout().has_frequency()) StoreRelaxed(layout().frequency(row), totals[i]);
    impl_->Publish(missing[i], row);
    if (this->admission() != nullptr) this->admission()->Forget(&missing[i], 1);
  }
  Find(keys, n, rows);
  return Status::Ok();
}

uint64_t EmbeddingTable::size() const {
  uint64_t rows = 0;
  for (Impl::Shard& shard : impl_->shards) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    rows += shard.rows.size();
  }
  return rows;
}

uint64_t EmbeddingTable::bytes() const {
  return size() * (layout().stride() + 24) + (admission() == nullptr ? 0 : admission()->bytes());
}

Status EmbeddingTable::Reserve(uint64_t n) { return Status::Ok(); }

Status EmbeddingTable::Put(const int64_t* keys, size_t n, const RowColumns& columns, const Parallel& parallel) {
  std::shared_lock<std::shared_mutex> gate(impl_->gate);
  std::lock_guard<std::mutex> admission(impl_->admission);
  const size_t dim = static_cast<size_t>(layout().dim());
  const RowInitializer initializer(config().init, layout().dim());
  for (size_t i = 0; i < n; ++i) {
    float* row = nullptr;
    Find(keys + i, 1, &row);
    const bool is_new = row == nullptr;
    if (is_new) TFCTR_RETURN_IF_ERROR(impl_->NewRow(keys[i], &row));
    if (columns.values != nullptr) {
      WriteRow(row, columns.values + i * dim, dim);
    } else {
      initializer.Fill(keys + i, 1, &row);
    }
    impl_->InitialSlots(row);
    for (size_t s = 0; s < layout().slots().size() && s < columns.slots.size(); ++s) {
      const size_t width = static_cast<size_t>(layout().slots()[s].width);
      if (columns.slots[s] != nullptr) WriteRow(layout().slot(row, s), columns.slots[s] + i * width, width);
    }
    if (layout().has_frequency()) {
      StoreRelaxed(layout().frequency(row), columns.frequency == nullptr ? 0u : columns.frequency[i]);
    }
    Touch(row, Now{columns.last_step == nullptr ? 0 : columns.last_step[i],
                   columns.last_time_ms == nullptr ? 0 : columns.last_time_ms[i]});
    if (is_new) impl_->Publish(keys[i], row);
  }
  if (this->admission() != nullptr) this->admission()->Forget(keys, n);
  return Status::Ok();
}

size_t EmbeddingTable::EraseIf(const int64_t* keys, size_t n,
                               const std::function<bool(int64_t key, const float* row)>& condemned) {
  std::lock_guard<std::mutex> structure(impl_->structure);
  std::unique_lock<std::shared_mutex> gate(impl_->gate);
  size_t erased = 0;
  for (size_t i = 0; i < n; ++i) {
    Impl::Shard& shard = impl_->Of(keys[i]);
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto it = shard.rows.find(keys[i]);
    if (it == shard.rows.end() || !condemned(keys[i], it->second)) continue;
    shard.rows.erase(it);
    ++erased;
  }
  return erased;
}

void EmbeddingTable::ForEach(int shard, const std::function<void(int64_t key, const float* row)>& visit) const {
  Impl::Shard& from = impl_->shards[static_cast<size_t>(shard)];
  std::lock_guard<std::mutex> lock(from.mutex);
  for (const auto& entry : from.rows) visit(entry.first, entry.second);
}

}  // namespace tfctr
