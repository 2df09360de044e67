// A stored row as float32 numbers: the counterpart of row_narrowing.h, one row at a time. Lookups have faster code of
// their own (gather_impl.h); both give the same bits.
// Thread-safety: pure functions. Cost: one pass over the row.
#ifndef TFCTR_CORE_LOOKUP_ROW_WIDENING_H_
#define TFCTR_CORE_LOOKUP_ROW_WIDENING_H_

#include <cstdint>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/dtype.h"

namespace tfctr {

// Writes `width` numbers to `out`.
using RowWidener = void (*)(const uint8_t* row, int64_t width, float* out);

// For kFloat32, kFloat16, kBFloat16 and kInt8; else null.
TFCTR_EXPORT RowWidener RowWidenerOf(DType storage);

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_ROW_WIDENING_H_
