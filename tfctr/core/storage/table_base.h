// What a delta or an overlay must know of the table it belongs to: a static table (table_file.h), whose keys are row
// ids, or a hash file (hash_file.h), whose keys are any int64.
// Thread-safety: plain values; the pointers live as long as the file does.
#ifndef TFCTR_CORE_STORAGE_TABLE_BASE_H_
#define TFCTR_CORE_STORAGE_TABLE_BASE_H_

#include <cstdint>
#include <string>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/file_format.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_file.h"

namespace tfctr {

// How rows are stored. A static table: the file's element type and elements per row, stride without gaps. A hash file:
// its storage type, its dim, a stride that is a multiple of 16. Two row shapes that are equal hold rows of the same
// bytes.
struct RowShape {
  bool hashed = false;
  DType dtype = DType::kInvalid;
  int64_t width = 0;
  int64_t row_bytes = 0;  // from one row to the next
  bool operator==(const RowShape& o) const {
    return hashed == o.hashed && dtype == o.dtype && width == o.width && row_bytes == o.row_bytes;
  }
};

// "rows of float32 x 16, by key" or "... by row id", for messages.
TFCTR_EXPORT std::string RowShapeText(const RowShape& shape);
// Of rows stored in that form; the stride follows. kInvalid when `dtype` can't be stored so.
TFCTR_EXPORT Result<RowShape> MakeRowShape(bool hashed, DType dtype, int64_t width);

// The row shape in the metadata of a delta or an overlay: keys "keys" (int64 or row_ids), dtype, width, row_bytes.
void PutRowShape(const RowShape& shape, Metadata* metadata);
// False unless the metadata has a possible one.
bool ReadRowShape(const Metadata& metadata, RowShape* shape);

struct TableBase {
  std::string name;
  std::string path;
  std::string fingerprint;
  RowShape shape;
  int64_t rows = 0;                  // a static table's rows; of a hash file without the default row
  const HashIndex* index = nullptr;  // of a hash file
  const uint8_t* data = nullptr;     // row 0
};

TFCTR_EXPORT TableBase BaseOf(const TableFile& table);
TFCTR_EXPORT TableBase BaseOf(const HashFile& hash);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_TABLE_BASE_H_
