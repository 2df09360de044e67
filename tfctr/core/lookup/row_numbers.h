// From what a lookup's steps leave of an id to the number of a row: keys of a hash file are found, ids of a table file
// whose overlay has newer rows are sent there. Lookups of other tables need nothing of it: their ids are row numbers.
//
// Thread-safety: immutable; any number of threads. Cost: number_impl.h.
#ifndef TFCTR_CORE_LOOKUP_ROW_NUMBERS_H_
#define TFCTR_CORE_LOOKUP_ROW_NUMBERS_H_

#include <atomic>
#include <cstdint>

#include "tfctr/core/lookup/number_kernels.h"
#include "tfctr/core/storage/served_table.h"

namespace tfctr {

class RowNumbering {
 public:
  RowNumbering() = default;
  RowNumbering(const ServedTable& table, NumberKernel number) : number_(number) {
    task_.index = table.index();
    task_.overlay = table.overlay();
    task_.base_rows = table.base_rows();
    task_.table = table.data();
    row_bytes_ = table.row_bytes();
  }

  // Whether this is the number of the row that keys get which a hash file does not have.
  bool IsDefaultRow(int64_t number) const { return task_.index != nullptr && number == task_.index->missing; }

  // False: ids are row numbers as they are.
  bool needed() const { return task_.index != nullptr || task_.overlay != nullptr; }

  // Makes row numbers of `ids`, in place. Of a hash file: any key has one; negative keys become -1 if `drop_negative`.
  // Of a table file: negative ids get `wrap` added if that leads into the table. Ids outside of it stay outside: the
  // negative ones as they are, the others as NumberTask::kOutside. `fetch`: rows of a hash file are prefetched.
  // `missing`, where given, gets the keys added that a hash file does not have.
  void Run(int64_t* ids, int64_t n, int64_t wrap, bool drop_negative, bool fetch,
           std::atomic<int64_t>* missing = nullptr) const {
    NumberTask task = task_;
    task.ids = ids;
    task.n = n;
    task.wrap = wrap;
    task.drop_negative = drop_negative;
    task.row_bytes = fetch ? row_bytes_ : 0;
    int64_t count = 0;
    if (missing != nullptr) task.missing = &count;
    number_(task);
    if (count > 0) missing->fetch_add(count, std::memory_order_relaxed);
  }

 private:
  NumberTask task_;
  int64_t row_bytes_ = 0;
  NumberKernel number_ = nullptr;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_ROW_NUMBERS_H_
