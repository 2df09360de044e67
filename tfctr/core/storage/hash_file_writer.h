// Writes hash files (hash_file.h) from keys and rows.
//
// Keys are sorted by their salted hash; that order is the order of lines and of rows, so equal keys and rows give equal
// files whatever order they came in. A salt under which some key lies far from its home (keys may be built to collide)
// is given up for another. Rows are then read in the order given, as often as there are windows of the file, and put
// in their places.
//
// Thread-safety: a call uses only its arguments.
// Cost: 41 bytes a key while sorting, 17 after; one window of rows (half of them, at least 32 MiB, at most a quarter
// of the machine's memory). The file appears under its name whole, after fsync, or not at all.
#ifndef TFCTR_CORE_STORAGE_HASH_FILE_WRITER_H_
#define TFCTR_CORE_STORAGE_HASH_FILE_WRITER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/file_format.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct HashFileSpec {
  std::string name;                 // of the table, for messages
  int64_t dim = 0;                  // values of a row
  DType storage = DType::kFloat32;  // kFloat32, kFloat16, kBFloat16 or kInt8
  Metadata extra;                   // step, time_ms, source, key_dtype, config
  uint64_t window_bytes = 0;        // rows in memory at a time; 0: see above
};

// Puts rows [first, first + n), in the order of the keys, into `rows`: StoredRowBytes each, without padding. May be
// asked for the same rows again; always in order within one pass.
using HashRowReader = std::function<Status(int64_t first, int64_t n, uint8_t* rows)>;

// Told of bytes of rows read, of all that will be; false stops the work (kInvalid "stopped").
using HashFileProgress = std::function<bool(uint64_t done, uint64_t total)>;

// kInvalid, naming the table: a dim, storage or number of rows that a hash file can't have.
TFCTR_EXPORT Status CheckHashFileSpec(const HashFileSpec& spec, int64_t rows);

// `default_row`: StoredRowBytes. kInvalid, naming table and key: a key that is given twice; more than kMaxHashRows
// keys. Takes the keys over, so that their memory is free before rows are read.
TFCTR_EXPORT Status WriteHashFile(const std::string& path, const HashFileSpec& spec, std::vector<int64_t> keys,
                                  const void* default_row, const HashRowReader& read,
                                  const HashFileProgress& progress = nullptr);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_HASH_FILE_WRITER_H_
