// Copies a tensor's bytes from a checkpoint's data shard into a table file, in blocks, checking the checksum that the
// checkpoint's index gives. Never more than one block in memory, never through a mapping (mapped pages would count in
// this process's resident size).
// Thread-safety: a call uses only its arguments.
#ifndef TFCTR_CORE_STORAGE_CHECKPOINT_COPY_H_
#define TFCTR_CORE_STORAGE_CHECKPOINT_COPY_H_

#include <cstdint>
#include <functional>
#include <string>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/status.h"
#include "tfctr/core/storage/table_file.h"

namespace tfctr {

// Where the index says that a tensor (or a slice of one) lies.
struct CheckpointExtent {
  std::string tensor;  // for messages
  std::string shard_path;
  uint64_t offset = 0;  // bytes
  uint64_t bytes = 0;
  uint32_t masked_crc32c = 0;
};

// Called with the number of bytes just copied; false stops the copy (kInvalid "stopped").
using CopyProgress = std::function<bool(uint64_t bytes)>;

// Appends the extent to `writer`. kCorrupt names the tensor and the shard when the checksum does not match or the
// shard is too short.
TFCTR_EXPORT Status CopyCheckpointTensor(const CheckpointExtent& extent, TableWriter* writer,
                                         const CopyProgress& progress = nullptr);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_CHECKPOINT_COPY_H_
