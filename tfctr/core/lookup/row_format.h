// How the rows of a table lie in its file and what a lookup makes of them.
//
// Most tables are stored as what they are. A float32 table may be stored in fewer bytes: as float16 or bfloat16
// elements, or as int8 numbers with one float32 scale per row in front of them. Such a row is turned into float32 while
// it is gathered (x = exactly what the stored bits say; for int8: number * scale, rounded once), and everything after
// that is the arithmetic of a float32 table. So a result is bit-equal to that of a float32 table of the stored values.
// Thread-safety: pure functions.
#ifndef TFCTR_CORE_LOOKUP_ROW_FORMAT_H_
#define TFCTR_CORE_LOOKUP_ROW_FORMAT_H_

#include <cstdint>

#include "tfctr/core/storage/dtype.h"

namespace tfctr {

enum class RowFormat {
  kInvalid,
  kFloat32,
  kFloat64,
  kFloat16,   // half precision in the file and in the output
  kBFloat16,  // the same
  kFloat16ToFloat32,
  kBFloat16ToFloat32,
  kInt8ToFloat32,  // float32 scale, then int8 numbers
};

inline constexpr int64_t kScaleBytes = 4;

// `storage` kInvalid: as the table's own dtype.
static inline RowFormat RowFormatOf(DType table, DType storage) {
  if (storage == DType::kInvalid || storage == table) {
    switch (table) {
      case DType::kFloat32:
        return RowFormat::kFloat32;
      case DType::kFloat64:
        return RowFormat::kFloat64;
      case DType::kFloat16:
        return RowFormat::kFloat16;
      case DType::kBFloat16:
        return RowFormat::kBFloat16;
      default:
        return RowFormat::kInvalid;
    }
  }
  if (table != DType::kFloat32) return RowFormat::kInvalid;
  switch (storage) {
    case DType::kFloat16:
      return RowFormat::kFloat16ToFloat32;
    case DType::kBFloat16:
      return RowFormat::kBFloat16ToFloat32;
    case DType::kInt8:
      return RowFormat::kInt8ToFloat32;
    default:
      return RowFormat::kInvalid;
  }
}

// What the file of such a table holds: elements of this dtype, so many per row.
static inline DType FileDType(DType table, DType storage) {
  if (storage == DType::kInvalid) return table;
  return storage == DType::kInt8 ? DType::kUInt8 : storage;
}
static inline int64_t FileWidth(int64_t width, DType storage) {
  return storage == DType::kInt8 ? width + kScaleBytes : width;
}

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_ROW_FORMAT_H_
