// Blob file: any bytes (an ONNX model, a compiled engine), mapped read-only. Identified by its contents: the file has
// no header of ours, so the whole of it is read once, when it is opened.
//
// Thread-safety: immutable; any number of threads. Cost: Open reads the file (about 1 ms per 5 MB in the page cache).
// The file must not be changed or truncated while open: bundles are immutable, replace them by rename.
#ifndef TFCTR_CORE_STORAGE_BLOB_FILE_H_
#define TFCTR_CORE_STORAGE_BLOB_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/file_io.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

// 8 hex digits of the crc32c of data[0..n), then 8 of n modulo 2^32.
TFCTR_EXPORT std::string BlobFingerprint(const void* data, uint64_t n);

class TFCTR_EXPORT BlobFile {
 public:
  // kNotFound, kCorrupt (empty), kInvalid (no regular file) or kIo.
  static Result<std::shared_ptr<const BlobFile>> Open(const std::string& path);
  static Result<std::shared_ptr<const BlobFile>> FromFd(const std::string& path, UniqueFd fd);

  const uint8_t* data() const { return map_.data(); }  // page-aligned, never null
  uint64_t bytes() const { return map_.size(); }
  const std::string& path() const { return path_; }
  std::string name() const { return path_.substr(path_.rfind('/') + 1); }
  const std::string& fingerprint() const { return fingerprint_; }
  const FileId& id() const { return id_; }

 private:
  BlobFile() = default;
  std::string path_;
  std::string fingerprint_;
  MappedFile map_;
  FileId id_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_BLOB_FILE_H_
