// The innermost loops of a lookup: rows are given as a list of pointers, already resolved and checked; they are summed
// per output row (or copied) and written at a stride into the output. Compiled once per instruction set from
// gather_impl.h; all three give the same bits.
//
// Thread-safety: pure functions. Cost: bound by the latency of random rows, so rows are prefetched `kPrefetchDistance`
// list entries ahead: the list must have that many readable entries behind its end (any address may stand there).
#ifndef TFCTR_CORE_LOOKUP_GATHER_H_
#define TFCTR_CORE_LOOKUP_GATHER_H_

#include <cstdint>

#include "tfctr/core/lookup/isa.h"
#include "tfctr/core/storage/dtype.h"

namespace tfctr {

inline constexpr int64_t kPrefetchDistance = 12;

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

// A: float for float32, float16 and bfloat16 tables, double for float64.
struct ReduceTask {
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
  const uint8_t* const* list = nullptr;
  int64_t entries = 0;
  int64_t per_row = 1;       // list entries that lie side by side in one output row
  int64_t first_in_row = 0;  // place of the first entry in its output row
  int64_t row_bytes = 0;     // of one table row
  uint8_t* out = nullptr;    // output row of the first entry
  int64_t out_stride = 0;
};

struct GatherKernels {
  void (*reduce)(DType dtype, const ReduceTask& task);
  void (*copy)(const CopyTask& task);
  // Writes to `out` the rows scaled as tf.clip_by_norm does per row (in the table's dtype).
  void (*clip)(DType dtype, const uint8_t* const* list, int64_t entries, int64_t width, double max_norm, uint8_t* out);
};

const GatherKernels& KernelsFor(Isa isa);

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_GATHER_H_
