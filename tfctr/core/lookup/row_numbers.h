// From what a lookup's steps leave of an id to the number of a row: keys of a
// hash file are found, ids of a table file whose overlay has newer rows are
// sent there. Lookups of other tables need nothing of it: their ids are row
// numbers.
//
// Thread-safety: immutable; any number of threads. Cost: one cache miss a key,
// overlapped; rows are fetched as soon as their numbers are known. An id of a
// table file costs a bit of the overlay's bitmap, and more only if it has a
// newer row.
#ifndef TFCTR_CORE_LOOKUP_ROW_NUMBERS_H_
#define TFCTR_CORE_LOOKUP_ROW_NUMBERS_H_

#include <cstdint>

#include "tfctr/core/lookup/id_steps.h"
#include "tfctr/core/storage/served_table.h"

namespace tfctr {

class RowNumbering {
 public:
  // What stands for an id that is in no table: above every row number, and
  // dropped by no prune step.
  static constexpr int64_t kOutside = INT64_MAX;

  RowNumbering() = default;
  explicit RowNumbering(const ServedTable* table)
      : table_(table->hashed() || table->overlay() != nullptr ? table : nullptr) {}

  // False: ids are row numbers as they are.
  bool needed() const { return table_ != nullptr; }

  // Makes row numbers of `ids`, in place. Of a hash file: any key has one;
  // negative keys become -1 if `drop_negative`. Of a table file: negative ids
  // get `wrap` added if that leads into the table. Ids outside of it stay
  // outside: the negative ones as they are, the others as kOutside. `hint`:
  // rows to fetch, or null.
  void Run(int64_t* ids, int64_t n, int64_t wrap, bool drop_negative, const RowHint* hint) const;

 private:
  const ServedTable* table_ = nullptr;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_ROW_NUMBERS_H_
