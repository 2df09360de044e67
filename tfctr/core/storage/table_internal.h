// What embedding_table.cc and table_snapshot.cc share.
// Thread-safety: see embedding_table.h.
#ifndef TFCTR_CORE_STORAGE_TABLE_INTERNAL_H_
#define TFCTR_CORE_STORAGE_TABLE_INTERNAL_H_

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tfctr/core/storage/embedding_table.h"

namespace tfctr {

struct EmbeddingTable::Impl {
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<int64_t, float*> rows;
    std::unordered_set<int64_t> added;  // since a snapshot began
    bool log = false;
  };

  explicit Impl(TableConfig c) : config(std::move(c)), shards(static_cast<size_t>(config.shards)) {}

  Shard& Of(int64_t key) { return shards[(static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15ull >> 40) % shards.size()]; }

  Status NewRow(int64_t key, float** row) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    const uint64_t after = (memory.size() + 1) * (config.layout.stride() + 24);
    if (config.max_bytes != 0 && after > config.max_bytes) {
      return Status::NoSpace("table '" + config.name + "' would take " + std::to_string(after) +
                             " bytes; max_bytes is " + std::to_string(config.max_bytes));
    }
    memory.emplace_back(new double[(config.layout.stride() + 7) / 8]);
    *row = reinterpret_cast<float*>(memory.back().get());
    return Status::Ok();
  }

  void InitialSlots(float* row) const {
    for (size_t s = 0; s < config.layout.slots().size(); ++s) {
      const SlotSpec& slot = config.layout.slots()[s];
      for (int j = 0; j < slot.width; ++j) config.layout.slot(row, s)[j] = slot.initial;
    }
  }

  void Publish(int64_t key, float* row) {
    Shard& shard = Of(key);
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.rows[key] = row;
    if (shard.log) shard.added.insert(key);
  }

  TableConfig config;
  std::vector<Shard> shards;
  MakeRoom make_room;
  std::mutex structure;
  std::mutex admission;
  std::shared_mutex gate;
  std::mutex memory_mutex;
  std::vector<std::unique_ptr<double[]>> memory;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_TABLE_INTERNAL_H_
