// Eviction: which rows and counters a table gives up, by rules that are run one after the other.
// docs/embedding_variable.md has the semantics; this file is their one implementation.
//
// Thread-safety: Evict() may run beside lookups, updates and snapshots of the table. Its plan is made from a scan; what
// changed since (an update, a count) is judged again under the table's lock before a row goes. Without such changes the
// outcome depends only on the table's contents, the rules and `now`.
// Cost: one pass over the table per rule, and 16 to 32 bytes per evicted key.
#ifndef TFCTR_CORE_EMBEDDING_EVICTION_H_
#define TFCTR_CORE_EMBEDDING_EVICTION_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tfctr/core/storage/embedding_table.h"
#include "tfctr/core/storage/now.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct EvictionRule {
  enum class Kind {
    kStep,         // now.step - last_step > steps_to_live
    kTtl,          // now.time_ms - last_time_ms > ttl_ms
    kL2,           // sqrt(sum of squares of the values) < threshold; rows only
    kCapacityLru,  // all but max_rows, least last_step first
    kCapacityLfu,  // all but max_rows, least frequency first
  };
  Kind kind = Kind::kStep;
  int64_t steps_to_live = 0;
  int64_t ttl_ms = 0;
  double threshold = 0.0;
  uint64_t max_rows = std::numeric_limits<uint64_t>::max();
  uint64_t min_rows = 0;                // the rule leaves at least this many rows
  std::vector<int64_t> protected_keys;  // the rule leaves these rows and counters
};

// What a rule took, or would take. `bytes` can be used by later keys of the table: rows and counters with their index
// entries.
struct EvictionCount {
  uint64_t rows = 0;
  uint64_t counters = 0;
  uint64_t bytes = 0;
};

struct EvictionResult {
  EvictionCount total;
  std::vector<EvictionCount> per_rule;  // as the rules given
};

// kInvalid, naming the table and the option, where a rule needs what the table's rows don't hold (last step, last time,
// frequency) or has an impossible value.
Status CheckRules(const EmbeddingTable& table, const std::vector<EvictionRule>& rules);

// Runs the rules in order, each on what the earlier ones left. A dry run counts and changes nothing.
Status Evict(EmbeddingTable* table, const std::vector<EvictionRule>& rules, Now now, bool dry_run,
             EvictionResult* result);

// The table has reached max_bytes and needs room for `rows` more: gives up that many rows, at least 1/32 of the table,
// in the order of the first capacity rule, within its min_rows and protected keys. Where counters have carried the
// table past max_bytes, half of them goes instead. Returns how many went; 0 where no rule is a capacity rule.
size_t EvictForRoom(EmbeddingTable* table, const std::vector<EvictionRule>& rules, size_t rows);

}  // namespace tfctr

#endif  // TFCTR_CORE_EMBEDDING_EVICTION_H_
