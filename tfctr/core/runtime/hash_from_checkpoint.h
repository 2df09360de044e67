// An embedding variable of a checkpoint as a hash file: keys and values are read in the slices that they lie in, the
// default row from NAME/config.
// Thread-safety: a call uses only its arguments. Cost: that of WriteHashFile; values are read once a window.
#ifndef TFCTR_CORE_RUNTIME_HASH_FROM_CHECKPOINT_H_
#define TFCTR_CORE_RUNTIME_HASH_FROM_CHECKPOINT_H_

#include <string>
#include <vector>

#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/hash_file_writer.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct HashBuild {
  double max_abs_error = 0.0;  // of narrow storage: |what a lookup will read - x| over all elements
};

// prefix: the path without ".index". table: what the checkpoint calls it ("model/user_id"; "" for a variable at the
// root), name: what the file calls it. Rows are stored as `storage`. kInvalid names checkpoint and table, and the
// tables that there are, when it is not there; and a row that the storage can't hold. kCorrupt where the bytes are not
// what was written, or a key is there twice.
Result<HashBuild> HashFileFromCheckpoint(const std::string& prefix, const std::string& table, const std::string& path,
                                         const std::string& name, DType storage, const HashFileProgress& progress);

// What a hash file of that table has beside its rows: the default row [dim], and its metadata (step, time_ms, ...).
struct FrozenDescription {
  std::vector<float> default_row;
  Metadata metadata;
};
Result<FrozenDescription> DescribeFrozen(const std::string& prefix, const std::string& table);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_HASH_FROM_CHECKPOINT_H_
