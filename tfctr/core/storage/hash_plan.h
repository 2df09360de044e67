// Where the keys of a hash file go: its lines, and the row number of each key in the order given.
// Thread-safety: a call uses only its arguments. Cost: sorts the keys; 16 bytes a key beside what it returns (17 a
// key).
#ifndef TFCTR_CORE_STORAGE_HASH_PLAN_H_
#define TFCTR_CORE_STORAGE_HASH_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/hash_lines.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct HashPlan {
  uint64_t salt = 0;
  uint64_t homes = 1;
  std::vector<HashLine> lines;
  std::vector<uint32_t> numbers;  // numbers[i]: row of keys[i]
};

// kInvalid, naming `table`, the key and both places, when a key is given twice.
TFCTR_EXPORT Result<HashPlan> PlanHashFile(const std::string& table, const std::vector<int64_t>& keys);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_HASH_PLAN_H_
