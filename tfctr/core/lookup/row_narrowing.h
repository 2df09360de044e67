// One float32 row in fewer bytes: float16, bfloat16, or int8 behind a float32 scale (narrow_table.h says how they
// round). A row's stored form depends on that row alone. Thread-safety: pure functions. Cost: one pass over the row
// (int8: two).
#ifndef TFCTR_CORE_LOOKUP_ROW_NARROWING_H_
#define TFCTR_CORE_LOOKUP_ROW_NARROWING_H_

#include <cstdint>
#include <string>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/dtype.h"

namespace tfctr {

// Turns `row` (width numbers) into its stored form at `out` and widens *error to what a lookup will then be off by;
// returns "", or what stands against it ("holds NaN").
using RowNarrower = std::string (*)(const float* row, int64_t width, uint8_t* out, double* error);

// For kFloat16, kBFloat16 and kInt8; else null.
TFCTR_EXPORT RowNarrower RowNarrowerOf(DType storage);

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_ROW_NARROWING_H_
