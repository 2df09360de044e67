// How an embedding table lies in a TensorFlow bundle, and the two directions: a table streamed into a BundleWriter, and
// a new table built from a BundleReader. ops/embedding_checkpoint_ops.cc lists the tensors.
//
// Thread-safety: plain functions. SaveTable may run beside lookups and updates of the table; the writer and the reader
// belong to the calling thread (LoadTable reads on a second one while rows are inserted).
// Cost: SaveTable holds a copy of one shard, or of a slice and 1/16 of the table's bytes (1 MB at least) for a delta;
// LoadTable two slices of kSliceRows rows.
#ifndef TFCTR_CORE_KERNELS_EV_BUNDLE_H_
#define TFCTR_CORE_KERNELS_EV_BUNDLE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tfctr/core/embedding/config.h"
#include "tfctr/core/storage/embedding_table.h"
#include "tfctr/core/storage/now.h"

namespace tfctr {

constexpr int kEvBundleFormat = 1;        // of NAME/config of a whole table; readers refuse greater ones
constexpr int kEvDeltaFormat = 2;         // of NAME/config of a delta, which is no table without those before it
constexpr int64_t kSliceRows = 1 << 16;   // a table of more rows is written in slices of at most so many
constexpr int64_t kSliceBytes = 8 << 20;  // ... and of at most so many bytes of values, where rows are wide

// What is saved, or taken from a checkpoint; keys and values always are.
struct CheckpointParts {
  bool slots = true;
  bool counters = true;  // counters of keys not admitted, and the frequency of rows
  bool steps = true;     // last step and last time
};

// `NAME/part`, or just `part` for a variable without a name: the root of a checkpoint.
inline std::string TensorName(const std::string& name, const std::string& part) {
  return name.empty() ? part : absl::StrCat(name, "/", part);
}

// Rows of a slice of a table of this dimension.
inline int64_t SliceRows(int dim) {
  const int64_t rows = kSliceBytes / (static_cast<int64_t>(sizeof(float)) * dim);
  return std::min(kSliceRows, std::max<int64_t>(rows, 1));
}

// A table's place in a bundle.
struct TablePlace {
  std::string name;       // see TensorName
  std::string key_dtype;  // "int64", "string" (its keys are fingerprints) or "": not known
};

// Attributes `names` and `key_dtypes` of an op over `count` tables.
absl::Status GetPlaces(tensorflow::OpKernelConstruction* context, int count, std::vector<TablePlace>* places);

// Which save a bundle is, where it is one of a chain: a whole save and the deltas on it.
struct SaveIdentity {
  std::string save;           // a random name; empty: a checkpoint that no delta follows
  std::string previous_name;  // of a delta: file name of the prefix before, in the same folder
  std::string previous_save;  // ... and which save that must be
};

// Adds the tensors of `table` to the bundle: all of it, or, with since >= 0, what changed since the end of that mark
// (EmbeddingTable::EndMark), unless too much was removed or changed for that, or the table remembers no changes.
// `config_json` is what the table was made from. `written` is called now and then, when more has gone to the writer.
absl::Status SaveTable(const std::shared_ptr<EmbeddingTable>& table, const std::string& config_json,
                       const TablePlace& place, const CheckpointParts& parts, Now now, const SaveIdentity& identity,
                       int64_t since, const std::function<void()>& written, tensorflow::BundleWriter* writer);

// Makes a table of `config` with what the bundle has at `place`; where that is a delta, with all it builds upon, which
// lies in the same folder. InvalidArgument, naming variable, checkpoint and
// both sides, where the two don't fit; DataLoss where the bytes are not what was written. now.step < 0 means the step
// of the save.
absl::Status LoadTable(tensorflow::BundleReader* reader, const std::string& prefix, const TablePlace& place,
                       const EvConfig& config, const CheckpointParts& parts, Now now, const Parallel& parallel,
                       std::shared_ptr<EmbeddingTable>* table);

// Sets counts of keys without a row, as they were saved; those of keys with a row are dropped. In a Bloom filter they
// are added to its cells. Needs a table with admission.
void PutCounts(std::vector<KeyCount> counts, Now now, EmbeddingTable* table);

}  // namespace tfctr

#endif  // TFCTR_CORE_KERNELS_EV_BUNDLE_H_
