#include "tfctr/core/storage/embedding_table.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "tfctr/core/storage/page_memory.h"
#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/table_internal.h"

namespace tfctr {
namespace {

constexpr size_t kGroup = 32;    // keys whose index entries, then rows, are fetched together
constexpr size_t kMaxLines = 8;  // of a value; the rest of a wide one is for the hardware prefetcher
constexpr uintptr_t kLine = 64;

void PrefetchValue(const float* row, size_t dim) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(row) & ~(kLine - 1);
  const uintptr_t last = reinterpret_cast<uintptr_t>(row + dim) - 1;
  const uintptr_t stop = std::min(last, begin + (kMaxLines - 1) * kLine);
  for (uintptr_t line = begin; line <= stop; line += kLine) __builtin_prefetch(reinterpret_cast<const void*>(line));
}

// The dims that are common get code of their own: a call of memcpy costs as much as such a row.
template <size_t kDim>
void CopyValue(float* __restrict to, const float* __restrict row, size_t dim) {
  ReadRow(to, row, kDim != 0 ? kDim : dim);
}

// Index entries to look at, one group ahead of their use.
struct Probes {
  const IndexEntry* at[kGroup];

  void Fetch(const TableState& table, const int64_t* keys, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const KeyPlace place = table.Place(keys[i]);
      const IndexArray* const index = table.Index(place.shard);
      at[i] = index->begin() + index->Home(place.place);
      __builtin_prefetch(at[i]);
    }
  }
};

void FindRows(const TableState& table, const int64_t* keys, size_t n, float** rows) {
  const size_t dim = static_cast<size_t>(table.config.layout.dim());
  Probes probes[2];
  probes[0].Fetch(table, keys, std::min(n, kGroup));
  for (size_t at = 0, turn = 0; at < n; at += kGroup, turn ^= 1) {
    const size_t count = std::min(n - at, kGroup);
    if (at + kGroup < n) probes[turn ^ 1].Fetch(table, keys + at + kGroup, std::min(n - at - kGroup, kGroup));
    for (size_t i = 0; i < count; ++i) {
      float* const row = FindRow(probes[turn].at[i], keys[at + i]);
      rows[at + i] = row;
      if (row != nullptr) PrefetchValue(row, dim);
    }
  }
}

template <size_t kDim>
size_t GatherRows(const TableState& table, const int64_t* keys, size_t n, float* out) {
  const size_t dim = static_cast<size_t>(table.config.layout.dim());
  const float* const default_row = table.config.default_value.data();
  Probes probes[2];
  const float* rows[2][kGroup];
  size_t found = 0;
  probes[0].Fetch(table, keys, std::min(n, kGroup));
  // Group g + 1 has its entries fetched while group g is probed and its rows fetched while group g - 1 is copied.
  for (size_t at = 0, turn = 0; at < n + kGroup; at += kGroup, turn ^= 1) {
    if (at + kGroup < n) probes[turn ^ 1].Fetch(table, keys + at + kGroup, std::min(n - at - kGroup, kGroup));
    for (size_t i = 0, count = at < n ? std::min(n - at, kGroup) : 0; i < count; ++i) {
      const float* const row = FindRow(probes[turn].at[i], keys[at + i]);
      found += row != nullptr;
      rows[turn][i] = row == nullptr ? default_row : row;
      PrefetchValue(rows[turn][i], dim);
    }
    if (at == 0) continue;
    float* to = out + (at - kGroup) * dim;
    for (size_t i = 0, count = std::min(n - (at - kGroup), kGroup); i < count; ++i, to += dim) {
      CopyValue<kDim>(to, rows[turn ^ 1][i], dim);
    }
  }
  return found;
}

template <size_t kDim>
void CopyFoundRows(const TableConfig& config, float* const* rows, size_t n, float* out) {
  const size_t dim = static_cast<size_t>(config.layout.dim());
  for (size_t i = 0; i < n; ++i, out += dim) {
    if (i + kGroup < n && rows[i + kGroup] != nullptr) PrefetchValue(rows[i + kGroup], dim);
    CopyValue<kDim>(out, rows[i] == nullptr ? config.default_value.data() : rows[i], dim);
  }
}

}  // namespace

EmbeddingTable::EmbeddingTable(std::unique_ptr<TableState> state) : state_(std::move(state)) {}
EmbeddingTable::~EmbeddingTable() = default;

Result<std::shared_ptr<EmbeddingTable>> EmbeddingTable::Create(TableConfig config) {
  const std::string table = "table '" + config.name + "': ";
  const size_t dim = static_cast<size_t>(config.layout.dim());
  if (dim < 1) return Status::Invalid(table + "the row layout has no dimension");
  if (config.shards < 1 || config.shards > 4096) {
    return Status::Invalid(table + std::to_string(config.shards) + " shards; expected 1 to 4096");
  }
  if (!config.default_value.empty() && config.default_value.size() != dim) {
    return Status::Invalid(table + "the default value has " + std::to_string(config.default_value.size()) +
                           " floats; expected " + std::to_string(dim));
  }
  if (const Status init = RowInitializer::Check(config.init, config.layout.dim()); !init.ok()) {
    return Status{init.code, table + init.message};
  }
  config.default_value.resize(dim, 0.0f);
  const uint64_t reserve = config.reserve_rows;
  std::shared_ptr<EmbeddingTable> made(new EmbeddingTable(std::make_unique<TableState>(std::move(config))));
  for (size_t s = 0; s < made->state_->shards.size(); ++s) {
    if (!made->state_->Rebuild(s, made->state_->NextCapacity(s, 0))) return made->state_->NoSpace("index entries");
  }
  TFCTR_RETURN_IF_ERROR(made->Reserve(reserve));
  return made;
}

const TableConfig& EmbeddingTable::config() const { return state_->config; }
const float* EmbeddingTable::default_row() const { return state_->config.default_value.data(); }
uint32_t EmbeddingTable::this_mark() const { return state_->this_mark.load(std::memory_order_relaxed); }
int64_t EmbeddingTable::instance() const { return state_->instance; }
const std::string& EmbeddingTable::origin() const { return state_->origin; }
void EmbeddingTable::set_origin(std::string save) { state_->origin = std::move(save); }

uint32_t EmbeddingTable::EndMark() {
  const std::unique_lock<UpdateGate> alone(state_->gate);
  const uint32_t ended = state_->this_mark.fetch_add(1, std::memory_order_relaxed);
  if (admission() != nullptr) admission()->set_mark(ended + 1);
  return ended;
}

void EmbeddingTable::set_make_room(MakeRoom make_room) { state_->make_room = std::move(make_room); }
uint64_t EmbeddingTable::bytes() const { return state_->Bytes(); }

void ReadGuard::Enter() { place_ = table_->state_->epochs.Enter(); }
void ReadGuard::Leave() { table_->state_->epochs.Leave(place_); }
void UpdateGuard::Enter() { table_->state_->gate.lock_shared(); }
void UpdateGuard::Leave() { table_->state_->gate.unlock_shared(); }

void EmbeddingTable::Find(const int64_t* keys, size_t n, float** rows) const { FindRows(*state_, keys, n, rows); }

size_t EmbeddingTable::Gather(const int64_t* keys, size_t n, float* out) const {
  if (n == 0) return 0;
  switch (layout().dim()) {
    case 8:
      return GatherRows<8>(*state_, keys, n, out);
    case 16:
      return GatherRows<16>(*state_, keys, n, out);
    case 32:
      return GatherRows<32>(*state_, keys, n, out);
    case 64:
      return GatherRows<64>(*state_, keys, n, out);
    default:
      return GatherRows<0>(*state_, keys, n, out);
  }
}

void EmbeddingTable::CopyRows(float* const* rows, size_t n, float* out) const {
  switch (layout().dim()) {
    case 8:
      return CopyFoundRows<8>(config(), rows, n, out);
    case 16:
      return CopyFoundRows<16>(config(), rows, n, out);
    case 32:
      return CopyFoundRows<32>(config(), rows, n, out);
    case 64:
      return CopyFoundRows<64>(config(), rows, n, out);
    default:
      return CopyFoundRows<0>(config(), rows, n, out);
  }
}

uint64_t EmbeddingTable::size() const {
  uint64_t rows = 0;
  for (const TableShard& shard : state_->shards) rows += shard.rows.load(std::memory_order_relaxed);
  return rows;
}

Status EmbeddingTable::Reserve(uint64_t n) {
  // Hashes spread the keys; a shard may get a little more than its part.
  const double mean = static_cast<double>(n) / static_cast<double>(state_->shards.size());
  const double homes = (mean + 4.0 * std::sqrt(mean)) / kMaxLoad;
  const double bytes = homes * static_cast<double>(sizeof(IndexEntry) * state_->shards.size());
  if (bytes > MachineMemory()) {
    return Status::NoSpace("table '" + name() + "': an index for " + std::to_string(n) + " rows takes " +
                           std::to_string(bytes / 1e9) + " GB, this machine has " +
                           std::to_string(MachineMemory() / 1e9));
  }
  const size_t capacity = static_cast<size_t>(homes) + 1;
  for (size_t s = 0; s < state_->shards.size(); ++s) {
    std::lock_guard<std::mutex> lock(state_->shards[s].mutex);
    if (state_->Index(s)->capacity >= capacity) continue;
    if (!state_->Rebuild(s, capacity)) return state_->NoSpace("index entries");
  }
  state_->Reclaim();
  return Status::Ok();
}

}  // namespace tfctr
