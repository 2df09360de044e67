#include "tfctr/core/storage/checkpoint_column.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tfctr/core/storage/crc32c.h"

namespace tfctr {
namespace {

Status Named(const CheckpointExtent& extent, Status status) {
  status.message = "tensor '" + extent.tensor + "' in '" + extent.shard_path + "': " + status.message;
  return status;
}

}  // namespace

Result<CheckpointColumn> CheckpointColumn::Open(std::vector<CheckpointExtent> extents, uint64_t row_bytes) {
  CheckpointColumn column;
  column.row_bytes_ = row_bytes;
  for (const CheckpointExtent& extent : extents) {
    if (row_bytes == 0 || extent.bytes % row_bytes != 0) {
      return Named(extent, Status::Invalid(std::to_string(extent.bytes) + " bytes are not whole rows of " +
                                           std::to_string(row_bytes)));
    }
    column.rows_ += static_cast<int64_t>(extent.bytes / row_bytes);
  }
  column.extents_ = std::move(extents);
  return column;
}

Status CheckpointColumn::Read(int64_t rows, void* out) {
  auto* to = static_cast<uint8_t*>(out);
  for (uint64_t left = static_cast<uint64_t>(rows) * row_bytes_; left > 0;) {
    while (current_ < extents_.size() && done_ == extents_[current_].bytes) TFCTR_RETURN_IF_ERROR(EndOfExtent());
    if (current_ == extents_.size()) return Status::Invalid("the checkpoint has no more rows");
    const CheckpointExtent& extent = extents_[current_];
    if (!fd_.valid()) {
      Result<UniqueFd> fd = OpenForRead(extent.shard_path);
      if (!fd.ok()) return Named(extent, fd.status());
      fd_ = fd.Take();
    }
    const uint64_t n = std::min(left, extent.bytes - done_);
    const Status read = ReadAt(fd_, extent.shard_path, extent.offset + done_, to, n);
    if (!read.ok()) return Named(extent, read);
    crc_ = Crc32cExtend(crc_, to, n);
    done_ += n;
    to += n;
    left -= n;
    if (done_ == extent.bytes) TFCTR_RETURN_IF_ERROR(EndOfExtent());
  }
  return Status::Ok();
}

Status CheckpointColumn::EndOfExtent() {
  const CheckpointExtent& extent = extents_[current_];
  if (MaskCrc32c(crc_) != extent.masked_crc32c) {
    return Named(extent, Status::Corrupt("the checkpoint is damaged: the tensor's checksum does not match"));
  }
  ++current_;
  done_ = 0;
  crc_ = 0;
  const bool same_file = current_ < extents_.size() && extents_[current_].shard_path == extent.shard_path;
  if (!same_file) fd_.Close();
  return Status::Ok();
}

}  // namespace tfctr
