// The configuration of an embedding variable: JSON that the Python classes write, read into the settings of its parts.
//
//   {"format": 1, "name": "user_id", "dim": 16, "shards": 16, "seed": "42",
//    "initializer": {"kind": "uniform", "low": -0.05, "high": 0.05} | {"kind": "normal" | "truncated_normal", "mean",
//      "stddev"} | {"kind": "constant", "value"},
//    "default_value": [0.0, ...],                                  dim floats, or one for all columns; absent: zeros
//    "optimizer": {"kind": "adagrad", "initial_accumulator_value", "epsilon", ...} | null,
//    "clip": {"kind": "value" | "row_norm" | "norm", "limit"} | null,
//    "admission": {"kind": "counter", "min_count"} | {"kind": "bloom", "min_count", "expected_keys",
//      "false_positive_rate", "counter_bits", "reset_every_steps"} | null,
//    "eviction": [{"kind": "step", "steps_to_live"} | {"kind": "ttl", "seconds"} | {"kind": "l2", "threshold"} |
//      {"kind": "capacity", "max_rows", "order": "lru" | "lfu"}, each with "min_rows", "protected_keys": ["-1", ...]],
//    "evict_every_steps": 0, "evict_on_save": false, "frequency": false, "last_step": false, "last_time": false,
//    "changes": false, "max_bytes": 0, "expected_rows": 0}
//
// Integers are JSON numbers or, where they may exceed 2^53, decimal strings; either is read. A member that is missing
// has the default of the structs below; one that is not known is refused: it asks for something that this version
// would not do.
// Thread-safety: plain values. Cost: read once per table.
#ifndef TFCTR_CORE_EMBEDDING_CONFIG_H_
#define TFCTR_CORE_EMBEDDING_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/embedding/eviction.h"
#include "tfctr/core/embedding/gradient_sum.h"
#include "tfctr/core/embedding/optimizers.h"
#include "tfctr/core/export.h"
#include "tfctr/core/storage/admission.h"
#include "tfctr/core/storage/embedding_table.h"
#include "tfctr/core/storage/row_initializer.h"
#include "tfctr/core/storage/row_layout.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

constexpr int kEvConfigFormat = 1;

struct EvConfig {
  std::string name;
  int dim = 0;
  int shards = 16;
  InitializerConfig initializer;
  std::vector<float> default_value;  // dim floats
  bool has_optimizer = false;
  OptimizerConfig optimizer;
  ClipConfig clip;
  AdmissionConfig admission;
  std::vector<EvictionRule> eviction;
  int64_t evict_every_steps = 0;
  bool evict_on_save = false;
  bool frequency = false;
  bool last_step = false;
  bool last_time = false;
  bool changes = false;    // remember what changed since a mark
  uint64_t max_bytes = 0;  // 0: no limit
  uint64_t expected_rows = 0;
};

// kInvalid, naming the variable, the member and what is wrong with it.
TFCTR_EXPORT Result<EvConfig> ParseEvConfig(std::string_view json);

// The row that this config asks for.
TFCTR_EXPORT Result<RowLayout> LayoutOf(const EvConfig& config);

// What a key that is counted and has no row takes in memory; 0 without counters, and with a Bloom filter.
TFCTR_EXPORT Result<uint64_t> CounterBytes(const EvConfig& config);

// A new, empty table of this config; admission, eviction for room and reserved rows included.
TFCTR_EXPORT Result<std::shared_ptr<EmbeddingTable>> MakeTable(const EvConfig& config);

}  // namespace tfctr

#endif  // TFCTR_CORE_EMBEDDING_CONFIG_H_
