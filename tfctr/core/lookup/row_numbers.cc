#include "tfctr/core/lookup/row_numbers.h"

#include <algorithm>

namespace tfctr {
namespace {

constexpr int64_t kChunk = 64;  // keys that are found before their rows are fetched

}  // namespace

void RowNumbering::Run(int64_t* ids, int64_t n, int64_t wrap, bool drop_negative, const RowHint* hint) const {
  const bool hashed = table_->hashed();
  const int64_t base_rows = table_->base_rows();
  for (int64_t at = 0; at < n; at += kChunk) {
    int64_t* const chunk = ids + at;
    const int64_t count = std::min(kChunk, n - at);
    uint64_t dropped = 0;
    if (!hashed) {
      for (int64_t k = 0; k < count; ++k) {
        if (chunk[k] < 0) {
          const int64_t wrapped = static_cast<int64_t>(static_cast<uint64_t>(chunk[k]) + static_cast<uint64_t>(wrap));
          if (wrapped >= 0 && wrapped < base_rows) chunk[k] = wrapped;
        } else if (chunk[k] >= base_rows) {
          chunk[k] = kOutside;
        }
      }
    } else if (drop_negative) {
      for (int64_t k = 0; k < count; ++k) dropped |= static_cast<uint64_t>(chunk[k] < 0) << k;
    }
    table_->Find(chunk, static_cast<size_t>(count), chunk);
    for (; dropped != 0; dropped &= dropped - 1) chunk[__builtin_ctzll(dropped)] = -1;
    if (hint == nullptr) continue;
    for (int64_t k = 0; k < count; ++k) hint->Fetch(chunk[k]);
  }
}

}  // namespace tfctr
