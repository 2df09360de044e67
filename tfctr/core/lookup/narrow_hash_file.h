// Writes the rows of a float32 hash file again in fewer bytes, as narrow_table.h does for tables: the same rounding,
// row by row, the default row with them; keys, name and metadata stay. Thread-safety: plain function. Cost: that of
// WriteHashFile (hash_file_writer.h).
#ifndef TFCTR_CORE_LOOKUP_NARROW_HASH_FILE_H_
#define TFCTR_CORE_LOOKUP_NARROW_HASH_FILE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "tfctr/core/export.h"
#include "tfctr/core/lookup/narrow_table.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

// `progress` gets the bytes of each block of rows that was read and stops the work by returning false. kInvalid, naming
// table and key: the file is not float32; a row that can't be stored so (NarrowTable says which).
TFCTR_EXPORT Result<NarrowResult> NarrowHashFile(const std::string& in_path, DType storage, const std::string& out_path,
                                                 const std::function<bool(uint64_t)>& progress);

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_NARROW_HASH_FILE_H_
