// Hash file: a frozen embedding table on disk, mapped read-only. N rows, the default row, and an index key -> row
// number (hash_lines.h). Row r starts at rows() + r * row_bytes(); row N is the default row, which an unknown key gets.
// docs/bundle_format.md has the bytes.
//
// Thread-safety: HashFile is immutable and may be read by any number of threads.
// Cost: Open reads the footer, the metadata, 4 bytes per 8 MiB and two lines of the index, whatever the size; no
// anonymous memory. The file must not be changed or truncated while open: replace it by rename.
#ifndef TFCTR_CORE_STORAGE_HASH_FILE_H_
#define TFCTR_CORE_STORAGE_HASH_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/file_format.h"
#include "tfctr/core/storage/hash_lines.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

inline constexpr int64_t kMaxHashRows = (int64_t{1} << 32) - 1;  // row numbers, that of the default row too, are uint32
inline constexpr int64_t kMaxHashDim = int64_t{1} << 24;

// Bytes of one row of `dim` values as stored, without padding: kFloat32, kFloat16, kBFloat16, or kInt8 (a float32 scale
// and `dim` numbers). 0 for other types.
TFCTR_EXPORT int64_t StoredRowBytes(DType storage, int64_t dim);
// From one row to the next: StoredRowBytes rounded up to a multiple of 16.
TFCTR_EXPORT int64_t HashRowStride(DType storage, int64_t dim);

class TFCTR_EXPORT HashFile {
 public:
  // kNotFound, kCorrupt, kInvalid (another kind of file) or kIo.
  static Result<std::shared_ptr<const HashFile>> Open(const std::string& path);
  static Result<std::shared_ptr<const HashFile>> FromContainer(std::unique_ptr<Container> container);

  const uint8_t* rows() const { return container_->data(); }  // page-aligned, never null
  int64_t row_bytes() const { return row_bytes_; }            // from one row to the next: a multiple of 16
  int64_t size() const { return index_.missing; }             // N, without the default row
  int64_t dim() const { return dim_; }
  DType storage() const { return storage_; }  // kFloat32, kFloat16, kBFloat16 or kInt8
  const uint8_t* default_row() const { return rows() + size() * row_bytes_; }
  const HashIndex& index() const { return index_; }
  // keys[i] = key of row first + i; [first, first + n) must lie in [0, size()). kCorrupt when the index is damaged.
  Status Keys(int64_t first, int64_t n, int64_t* keys) const;

  const std::string& name() const { return name_; }
  const std::string& path() const { return container_->path(); }
  const std::string& fingerprint() const { return container_->fingerprint(); }
  // All of it; beside what this class reads: step, time_ms, source, key_dtype, config (of the embedding variable).
  const Metadata& metadata() const { return container_->metadata(); }
  const Container& container() const { return *container_; }
  uint64_t bytes() const { return container_->data_bytes(); }
  bool has_checksums() const { return container_->has_checksums(); }

  Status VerifyChecksums() const { return container_->VerifyChecksums(); }
  // Reads the whole index: every key is found at its number, no key is twice there, counts and flags agree.
  Status VerifyIndex() const;
  void Prefault() const { container_->Prefault(); }

 private:
  HashFile() = default;
  std::unique_ptr<Container> container_;
  HashIndex index_;
  int64_t row_bytes_ = 0;
  int64_t dim_ = 0;
  DType storage_ = DType::kInvalid;
  std::string name_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_HASH_FILE_H_
