// Reads a checkpoint's index (TensorFlow's tensor bundle, V2) without touching tensor data: where each tensor, or each
// slice of a partitioned one, lies in the shards, and its checksum. The copy itself is TensorFlow-free
// (storage/checkpoint_copy.h).
//
// The index is read through TensorFlow's table reader, which checks the checksum of every index block and, unlike
// iterating a BundleReader, reports a damaged block instead of ending early.
// Thread-safety: pure functions. Cost: proportional to the index, about a microsecond per entry.
#ifndef TFCTR_CORE_RUNTIME_CHECKPOINT_INDEX_H_
#define TFCTR_CORE_RUNTIME_CHECKPOINT_INDEX_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tfctr/core/storage/checkpoint_copy.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct CheckpointSlice {
  std::vector<int64_t> start;   // first index on each axis
  std::vector<int64_t> length;  // extent on each axis
  CheckpointExtent extent;
};

struct CheckpointEntry {
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  std::vector<int64_t> shape;  // of the whole tensor
  // One covering everything for an ordinary tensor; for a partitioned variable its parts, by start.
  std::vector<CheckpointSlice> slices;
  bool partitioned = false;
};

// By tensor key.
using CheckpointIndex = std::map<std::string, CheckpointEntry>;

// `prefix`: the path without ".index". kNotFound when index or a shard is missing; kCorrupt when the index is damaged,
// a shard is shorter than the index says, or parts of a partitioned variable are missing; kInvalid for big-endian
// checkpoints.
Result<CheckpointIndex> ReadCheckpointIndex(const std::string& prefix);

// The entry of `key`, or kInvalid naming the key and some that exist.
Result<const CheckpointEntry*> FindEntry(const CheckpointIndex& index, const std::string& prefix,
                                         const std::string& key);

// Where the rows of tensor `key` lie, in order: the extents of a whole tensor, or of parts that split axis 0. Errors as
// FindEntry; kInvalid where it is partitioned along another axis, kCorrupt where rows are missing.
Result<std::vector<CheckpointExtent>> RowExtents(const CheckpointIndex& index, const std::string& prefix,
                                                 const std::string& key);

// Copies a tensor into a new table file: whole, or merged from parts that split axis 0, in row order. Bounded memory,
// every part's checksum checked. `progress` as in CopyCheckpointTensor.
Status CopyTensorToTable(const std::string& prefix, const std::string& key, const std::string& out_path,
                         const std::string& name, const CopyProgress& progress);

// Reads one tensor into memory, checksum checked; parts are merged. For small dense variables.
Result<tensorflow::Tensor> ReadTensor(const std::string& prefix, const std::string& key);

// "float32" rather than TensorFlow's "float" where NumPy has the type, else TensorFlow's name.
std::string TypeName(tensorflow::DataType dtype);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_CHECKPOINT_INDEX_H_
