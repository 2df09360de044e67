#include "tfctr/core/storage/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace tfctr {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void UniqueFd::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Status ErrnoStatus(const std::string& what, const std::string& path, int error) {
  std::string message = what + " '" + path + "': " + ::strerror(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Status::NotFound(std::move(message));
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Status::NoSpace(std::move(message));
    default:
      return Status::Io(std::move(message));
  }
}

Result<UniqueFd> OpenForRead(const std::string& path) {
  // O_NONBLOCK: a FIFO under this name must not block us; regular files ignore it.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus("cannot open", path, errno);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("cannot stat", path, errno);
  if (!S_ISREG(info.st_mode)) return Status::Invalid("'" + path + "' is not a regular file");
  return fd;
}

Result<FileId> IdOf(const UniqueFd& fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus("cannot stat", path, errno);
  FileId id;
  id.device = static_cast<uint64_t>(info.st_dev);
  id.inode = static_cast<uint64_t>(info.st_ino);
  id.size = static_cast<uint64_t>(info.st_size);
  id.mtime_ns = static_cast<int64_t>(info.st_mtim.tv_sec) * 1000000000 + info.st_mtim.tv_nsec;
  return id;
}

Status ReadAt(const UniqueFd& fd, const std::string& path, uint64_t offset, void* out, uint64_t bytes) {
  uint8_t* to = static_cast<uint8_t*>(out);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd.get(), to, bytes, static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus("cannot read", path, errno);
    }
    if (n == 0) {
      return Status::Corrupt("'" + path + "' is truncated: it ends " + std::to_string(bytes) + " bytes early");
    }
    to += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return Status::Ok();
}

Status WriteAll(const UniqueFd& fd, const std::string& path, const void* data, uint64_t bytes) {
  const uint8_t* from = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd.get(), from, bytes);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus("cannot write", path, errno);
    }
    from += n;
    bytes -= static_cast<uint64_t>(n);
  }
  return Status::Ok();
}

Status WriteAllAt(const UniqueFd& fd, const std::string& path, uint64_t offset, const void* data, uint64_t bytes) {
  const uint8_t* from = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd.get(), from, bytes, static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus("cannot write", path, errno);
    }
    from += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return Status::Ok();
}

Status SyncDirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus("cannot open", directory, errno);
  // EINVAL: a file system without durable directories; nothing to be had there.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return ErrnoStatus("cannot sync", directory, errno);
  return Status::Ok();
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Result<MappedFile> MappedFile::Map(const UniqueFd& fd, const std::string& path, uint64_t size) {
  if (size == 0) return Status::Corrupt("'" + path + "' is empty");
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus("cannot map", path, errno);
  MappedFile file;
  file.data_ = static_cast<const uint8_t*>(data);
  file.size_ = size;
  return file;
}

void MappedFile::Unmap() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace tfctr
