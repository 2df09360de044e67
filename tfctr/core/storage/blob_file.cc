#include "tfctr/core/storage/blob_file.h"

#include <cstdio>

#include "tfctr/core/storage/crc32c.h"

namespace tfctr {

std::string BlobFingerprint(const void* data, uint64_t n) {
  char text[17];
  std::snprintf(text, sizeof(text), "%08x%08x", Crc32c(data, n), static_cast<uint32_t>(n));
  return text;
}

Result<std::shared_ptr<const BlobFile>> BlobFile::Open(const std::string& path) {
  Result<UniqueFd> fd = OpenForRead(path);
  if (!fd.ok()) return fd.status();
  return FromFd(path, fd.Take());
}

Result<std::shared_ptr<const BlobFile>> BlobFile::FromFd(const std::string& path, UniqueFd fd) {
  std::shared_ptr<BlobFile> blob(new BlobFile());
  const Result<FileId> id = IdOf(fd, path);
  if (!id.ok()) return id.status();
  Result<MappedFile> map = MappedFile::Map(fd, path, id.value().size);
  if (!map.ok()) return map.status();
  blob->path_ = path;
  blob->id_ = id.value();
  blob->map_ = map.Take();
  blob->fingerprint_ = BlobFingerprint(blob->data(), blob->bytes());
  return std::shared_ptr<const BlobFile>(std::move(blob));
}

}  // namespace tfctr
