// Small RAII wrappers over POSIX files: descriptors, positioned reads and writes that finish, read-only mappings.
// Thread-safety: each object belongs to one thread, except that a MappedFile may be read by many.
#ifndef TFCTR_CORE_STORAGE_FILE_IO_H_
#define TFCTR_CORE_STORAGE_FILE_IO_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

class TFCTR_EXPORT UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { Close(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// What makes two paths the same file contents for the store: device, inode, size, modification time.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  bool operator<(const FileId& other) const {
    return std::tie(device, inode, size, mtime_ns) < std::tie(other.device, other.inode, other.size, other.mtime_ns);
  }
  bool operator==(const FileId& other) const { return !(*this < other) && !(other < *this); }
};

// errno -> Status naming what was tried and the path: ENOENT is kNotFound; ENOSPC, EDQUOT and EFBIG are kNoSpace.
TFCTR_EXPORT Status ErrnoStatus(const std::string& what, const std::string& path, int error);

TFCTR_EXPORT Result<UniqueFd> OpenForRead(const std::string& path);  // regular files only
TFCTR_EXPORT Result<FileId> IdOf(const UniqueFd& fd, const std::string& path);
// Reads exactly `bytes` at `offset`; kCorrupt when the file ends before.
TFCTR_EXPORT Status ReadAt(const UniqueFd& fd, const std::string& path, uint64_t offset, void* out, uint64_t bytes);
TFCTR_EXPORT Status WriteAll(const UniqueFd& fd, const std::string& path, const void* data, uint64_t bytes);
TFCTR_EXPORT Status WriteAllAt(const UniqueFd& fd, const std::string& path, uint64_t offset, const void* data,
                               uint64_t bytes);
// Makes a rename in the directory of `path` durable.
TFCTR_EXPORT Status SyncDirectoryOf(const std::string& path);

// A whole file mapped read-only and shared: its pages are the page cache's, one copy for all processes.
class TFCTR_EXPORT MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile() { Unmap(); }
  static Result<MappedFile> Map(const UniqueFd& fd, const std::string& path, uint64_t size);
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  void Unmap();
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_FILE_IO_H_
