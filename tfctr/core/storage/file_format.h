// What table, vocabulary, hash, overlay and delta files share: payload, padding, block checksums, metadata text,
// 64-byte footer. docs/bundle_format.md has the layout byte by byte.
//
//   Container        an opened, mapped file whose footer, sizes, metadata and checksum list were checked
//   ContainerWriter  writes one: under a temporary name beside the target, fsync, rename
//
// Thread-safety: Container is immutable; ContainerWriter belongs to one thread.
// Cost: opening reads the footer, the metadata and 4 bytes per 8 MiB of payload, never the payload.
#ifndef TFCTR_CORE_STORAGE_FILE_FORMAT_H_
#define TFCTR_CORE_STORAGE_FILE_FORMAT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/file_io.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

inline constexpr uint64_t kBlockBytes = 8ull << 20;  // one checksum per block of payload
inline constexpr uint64_t kPageBytes = 4096;         // the payload is padded to a multiple of this
inline constexpr uint64_t kFooterBytes = 64;
inline constexpr uint32_t kFormatVersion = 1;
inline constexpr uint32_t kFlagChecksums = 1;  // footer flag: block checksums are present

enum class FileKind { kTable, kVocab, kBlob, kHash, kOverlay, kDelta };  // a blob is no container
// "table", "vocab", "blob", "hash", "overlay", "delta"
TFCTR_EXPORT const char* FileKindName(FileKind kind);
// kInvalid "'PATH' is a vocabulary file, expected a table file".
TFCTR_EXPORT Status WrongKind(const std::string& path, FileKind kind, FileKind expected);

// Metadata: lines "key value\n", values percent-encoded where they hold bytes outside 0x21..0x7e or '%'.
using Metadata = std::map<std::string, std::string>;

class TFCTR_EXPORT Container {
 public:
  static Result<std::unique_ptr<Container>> Open(const std::string& path);
  // The same on a file that is already open; takes the descriptor over.
  static Result<std::unique_ptr<Container>> Open(const std::string& path, UniqueFd fd);

  const std::string& path() const { return path_; }
  FileKind kind() const { return kind_; }
  const uint8_t* data() const { return map_.data(); }  // page-aligned, never null
  uint64_t data_bytes() const { return data_bytes_; }
  uint64_t file_bytes() const { return map_.size(); }
  const Metadata& metadata() const { return metadata_; }
  const std::string& fingerprint() const { return fingerprint_; }  // 16 hex digits
  bool has_checksums() const { return has_checksums_; }
  const FileId& id() const { return id_; }

  // Reads the payload with pread (mapped pages would count in this process's resident size) and compares every
  // block's crc32c. kInvalid when the file has no checksums, kCorrupt naming the first bad block.
  Status VerifyChecksums() const;
  // Asks the kernel to bring the whole payload into memory. Advice only.
  void Prefault() const;

 private:
  Container() = default;
  std::string path_;
  FileKind kind_ = FileKind::kTable;
  MappedFile map_;
  FileId id_;
  uint64_t data_bytes_ = 0;
  bool has_checksums_ = false;
  std::vector<uint32_t> checksums_;
  Metadata metadata_;
  std::string fingerprint_;
};

class TFCTR_EXPORT ContainerWriter {
 public:
  // Opens a temporary file beside `path` whose name starts with a dot.
  static Result<std::unique_ptr<ContainerWriter>> Create(const std::string& path, FileKind kind);
  // Writes to anonymous memory (memfd) instead of a file; `name` is for messages. Finished by FinishInMemory.
  static Result<std::unique_ptr<ContainerWriter>> InMemory(const std::string& name, FileKind kind);
  ~ContainerWriter();  // removes the temporary file unless Finish succeeded
  ContainerWriter(const ContainerWriter&) = delete;
  ContainerWriter& operator=(const ContainerWriter&) = delete;

  Status Append(const void* data, uint64_t bytes);
  uint64_t bytes_written() const { return bytes_written_; }
  // Sparse payload instead of Append: sets the payload's length, holes read as zero, no block checksums.
  Status SetSparseLength(uint64_t bytes);
  Status WriteAt(uint64_t offset, const void* data, uint64_t bytes);
  // Pads, writes checksums, metadata and footer, fsyncs (a dense payload) and renames to the target path.
  Status Finish(const Metadata& metadata);
  // The descriptor of the whole file in memory, sealed against changes.
  Result<UniqueFd> FinishInMemory(const Metadata& metadata);

 private:
  ContainerWriter() = default;
  Status WriteTail(const Metadata& metadata);  // all that lies behind the payload
  Status Raw(const void* data, uint64_t bytes);
  std::string path_;
  std::string tmp_path_;
  FileKind kind_ = FileKind::kTable;
  UniqueFd fd_;
  bool sparse_ = false;
  bool in_memory_ = false;
  bool finished_ = false;
  uint64_t bytes_written_ = 0;
  uint32_t block_crc_ = 0;
  uint64_t block_fill_ = 0;
  std::vector<uint32_t> checksums_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_FILE_FORMAT_H_
