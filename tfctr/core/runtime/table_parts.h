// Parts of partitioned variables: one part of a checkpoint tensor as a table file of its own, and the files of several
// parts merged into the table that they are parts of.
//
// Thread-safety: a call uses only its arguments. Cost: one read and one write of the bytes, in blocks; nothing is
// mapped (mapped pages would count in this process's resident size).
#ifndef TFCTR_CORE_RUNTIME_TABLE_PARTS_H_
#define TFCTR_CORE_RUNTIME_TABLE_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfctr/core/storage/checkpoint_copy.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

// Copies the part of tensor `key` that starts at `start` on each axis and has `length` there, checksum checked.
// kInvalid unless the checkpoint stores exactly that part.
Status CopyPartToTable(const std::string& prefix, const std::string& key, const std::vector<int64_t>& start,
                       const std::vector<int64_t>& length, const std::string& out_path, const std::string& name,
                       const CopyProgress& progress);

enum class MergeOrder {
  kConcatenate,  // rows of part 0, then rows of part 1, ...  (partition strategy "div")
  kInterleave,   // row r of the whole is row r / P of part r % P  (partition strategy "mod")
};

// kInvalid when the parts differ in dtype or row shape, or their sizes do not fit the order: interleaved parts may
// differ by one row, the longer ones first.
Status MergeTables(const std::vector<std::string>& parts, MergeOrder order, const std::string& out_path,
                   const std::string& name);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_TABLE_PARTS_H_
