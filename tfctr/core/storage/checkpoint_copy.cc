#include "tfctr/core/storage/checkpoint_copy.h"

#include <algorithm>
#include <memory>

#include "tfctr/core/storage/crc32c.h"
#include "tfctr/core/storage/file_io.h"

namespace tfctr {
namespace {

Status Named(const CheckpointExtent& extent, Status status) {
  status.message = "tensor '" + extent.tensor + "' in '" + extent.shard_path + "': " + status.message;
  return status;
}

}  // namespace

Status CopyCheckpointTensor(const CheckpointExtent& extent, TableWriter* writer, const CopyProgress& progress) {
  Result<UniqueFd> fd = OpenForRead(extent.shard_path);
  if (!fd.ok()) return Named(extent, fd.status());
  const std::unique_ptr<uint8_t[]> buffer(new uint8_t[std::min(kBlockBytes, extent.bytes) + 1]);
  uint32_t crc = 0;
  for (uint64_t done = 0; done < extent.bytes;) {
    const uint64_t n = std::min(kBlockBytes, extent.bytes - done);
    const Status read = ReadAt(fd.value(), extent.shard_path, extent.offset + done, buffer.get(), n);
    if (!read.ok()) return Named(extent, read);
    crc = Crc32cExtend(crc, buffer.get(), n);
    TFCTR_RETURN_IF_ERROR(writer->Append(buffer.get(), n));
    done += n;
    if (progress && !progress(n)) return Named(extent, Status::Invalid("the copy was stopped"));
  }
  if (MaskCrc32c(crc) != extent.masked_crc32c) {
    return Named(extent, Status::Corrupt("the checkpoint is damaged: the tensor's checksum does not match"));
  }
  return Status::Ok();
}

}  // namespace tfctr
