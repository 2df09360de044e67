// Writes a float32 table again in fewer bytes: float16, bfloat16, or int8 with a scale per row (row_format.h says what
// a lookup makes of it, docs/bundle_format.md has the bytes).
//
// Rounding is to nearest even. An int8 row has scale = max |x| / 127 and numbers x / scale, rounded; a row whose scale
// would be 0 or subnormal (all |x| below 1.5e-36) becomes zeros with scale 0, so that what is read never depends on how
// a CPU treats subnormal numbers.
// Thread-safety: plain functions. Cost: reads and writes 8 MiB at a time, whatever the size of the table.
#ifndef TFCTR_CORE_LOOKUP_NARROW_TABLE_H_
#define TFCTR_CORE_LOOKUP_NARROW_TABLE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct NarrowResult {
  double max_abs_error = 0.0;  // over all elements: |what a lookup will read - x|
};

// Makes the table file `out_path` from the one at `in_path`; the name stays. `storage`: kFloat16, kBFloat16 or kInt8.
// `progress` gets the bytes of each block written and stops the work by returning false. kInvalid, naming table and
// row: the table is not float32 of rank 1 or more; a finite number that the narrow type can't hold; for int8, a row
// with NaN or Inf (float16 and bfloat16 keep both). Nothing is left at `out_path` unless all went well.
TFCTR_EXPORT Result<NarrowResult> NarrowTable(const std::string& in_path, DType storage, const std::string& out_path,
                                              const std::function<bool(uint64_t)>& progress);

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_NARROW_TABLE_H_
