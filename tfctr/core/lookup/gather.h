// The innermost loops of a lookup: rows are given as a list of pointers, already resolved and checked; they are summed
// per output row (or copied) and written at a stride into the output. Compiled once per instruction set from
// gather_impl.h; all three give the same bits.
//
// Thread-safety: pure functions. Cost: bound by the cache and TLB misses of random rows. While a list is worked off,
// the rows of the list that comes next (`ahead`) are prefetched; the stream kernels look ahead in their own ids.
#ifndef TFCTR_CORE_LOOKUP_GATHER_H_
#define TFCTR_CORE_LOOKUP_GATHER_H_

#include <cstdint>

#include "tfctr/core/lookup/row_format.h"
#include "tfctr/core/lookup/row_prefetch.h"
#include "tfctr/core/storage/isa.h"

namespace tfctr {

// Order of the additions within one output row, after the stock op that is replaced.
enum class AddOrder {
  kSparseSegment,  // SparseSegment*: first n%8 rows (8 for 0, 9 for 1), then sums of 8
  kSegmentSum,     // SegmentSum: one after the other; from 16 rows on four interleaved sums in whole packets
  kReduceSum,      // Sum over the middle axis of [B, T, D]: the same, but packets count from the start of the output
  kPlain,          // one after the other
};

enum class Finish {
  kNone,
  kSegmentMean,   // times 1/n for n < 10, divided by n from 10 on
  kSegmentSqrtn,  // the same with sqrt(n)
  kDivide,        // by divisors[row]
  kDivideNoNan,   // the same, 0 where the divisor is 0
};

// A: double for float64 tables, else float.
struct ReduceTask {
  RowsAhead* ahead = nullptr;
  const uint8_t* const* list = nullptr;  // rows of the table, output row by output row
  const int64_t* counts = nullptr;       // [rows] list entries of each output row
  const void* weights = nullptr;         // A, one per list entry; null: none
  const void* divisors = nullptr;        // A [rows], for kDivide and kDivideNoNan
  int64_t rows = 0;
  int64_t first_row = 0;  // number of the first output row
  int64_t width = 0;      // elements of a table row
  uint8_t* out = nullptr;
  int64_t out_stride = 0;  // bytes from one output row to the next
  AddOrder order = AddOrder::kSparseSegment;
  Finish finish = Finish::kNone;
  bool empty_is_nan = false;  // what an output row with count 0 gets, else 0
};

struct CopyTask {
  RowsAhead* ahead = nullptr;
  const uint8_t* const* list = nullptr;
  int64_t entries = 0;
  int64_t per_row = 1;       // list entries that lie side by side in one output row
  int64_t first_in_row = 0;  // place of the first entry in its output row
  int64_t width = 0;         // elements of a table row
  int64_t row_bytes = 0;     // of one table row in the output
  uint8_t* out = nullptr;    // output row of the first entry
  int64_t out_stride = 0;
};

// A feature whose ids are row numbers already: everything in one loop, from ids to output rows, SparseSegment order.
// Negative ids are dropped (`prune`) or have `wrap` added. Widths of 1, 2, 4 or 8 vectors of floats only, whatever the
// floats are stored as.
struct StreamTask {
  const void* ids = nullptr;  // int64 or int32; of the values from `ids_first` on
  int64_t ids_first = 0;
  bool ids_wide = true;
  // Row number per value, int64 or int32, every `stride` numbers; or else int64 row_splits
  // (`splits`), or a fixed number of values per output row (`positions`).
  const void* rows = nullptr;
  bool rows_wide = true;
  int64_t stride = 1;
  bool splits = false;
  int64_t positions = 0;
  int64_t row_begin = 0;  // first output row
  int64_t row_end = 0;
  int64_t value_begin = 0;  // first value
  int64_t value_end = 0;
  const uint8_t* table = nullptr;
  int64_t table_rows = 0;
  int64_t row_bytes = 0;  // from one row to the next: StoredBytes, or that rounded up to 16
  int64_t wrap = 0;
  bool prune = false;
  int64_t fill_id = -1;  // of output rows without values; -1: none. Must be checked by the caller.
  bool copy = false;     // no reduction: `positions` table rows side by side per output row, any width
  int64_t width = 0;
  uint8_t* out = nullptr;  // of output row 0
  int64_t out_stride = 0;
  Finish finish = Finish::kNone;
  bool empty_is_nan = false;
};

struct GatherKernels {
  // False: an id or a row is out of range or rows are not in order; what was written is worthless.
  bool (*stream)(RowFormat format, const StreamTask& task);
  // Whether `stream` has a loop for this width.
  bool (*has_stream)(RowFormat format, int64_t width);
  void (*reduce)(RowFormat format, const ReduceTask& task);
  void (*copy)(RowFormat format, const CopyTask& task);
  // Writes to `out` the rows scaled as tf.clip_by_norm does per row, in the table's dtype (not in what it is stored
  // as).
  void (*clip)(RowFormat format, const uint8_t* const* list, int64_t entries, int64_t width, double max_norm,
               uint8_t* out);
};

const GatherKernels& KernelsFor(Isa isa);

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_GATHER_H_
