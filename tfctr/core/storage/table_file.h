// Table file: one dense array on disk, mapped read-only. Data starts at byte 0 of the file, rows lie one after the
// other (row stride = width * element size), so a lookup is `data() + id * stride`.
//
// Thread-safety: TableFile is immutable and may be read by any number of threads; a TableWriter belongs to one.
// Cost: Open is milliseconds whatever the size (footer, metadata, 4 bytes per 8 MiB); no anonymous memory.
// The file must not be changed or truncated while open: bundles are immutable, replace them by rename.
#ifndef TFCTR_CORE_STORAGE_TABLE_FILE_H_
#define TFCTR_CORE_STORAGE_TABLE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/file_format.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

class TFCTR_EXPORT TableFile {
 public:
  // Checks footer, sizes and metadata, not the data. kNotFound, kCorrupt, kInvalid (another kind of file) or kIo.
  static Result<std::shared_ptr<const TableFile>> Open(const std::string& path);
  static Result<std::shared_ptr<const TableFile>> FromContainer(std::unique_ptr<Container> container);

  const uint8_t* data() const { return container_->data(); }  // page-aligned, never null
  uint64_t bytes() const { return container_->data_bytes(); }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t rows() const { return shape_.empty() ? 1 : shape_[0]; }
  // Elements of one row: the product of all dimensions but the first (1 for rank 0 and 1).
  int64_t width() const { return width_; }
  const std::string& name() const { return name_; }
  const std::string& path() const { return container_->path(); }
  const std::string& fingerprint() const { return container_->fingerprint(); }
  bool has_checksums() const { return container_->has_checksums(); }
  const Container& container() const { return *container_; }
  Status VerifyChecksums() const { return container_->VerifyChecksums(); }
  void Prefault() const { container_->Prefault(); }

 private:
  TableFile() = default;
  std::unique_ptr<Container> container_;
  DType dtype_ = DType::kInvalid;
  std::vector<int64_t> shape_;
  int64_t width_ = 1;
  std::string name_;
};

class TFCTR_EXPORT TableWriter {
 public:
  // Writes under a temporary dot name beside `path`; Finish renames it to `path`. Destroyed without a successful
  // Finish, it leaves nothing behind.
  static Result<std::unique_ptr<TableWriter>> Create(const std::string& path, const std::string& name, DType dtype,
                                                     const std::vector<int64_t>& shape);
  Status Append(const void* data, uint64_t bytes);
  // kInvalid unless exactly the bytes of the shape were appended.
  Status Finish();
  uint64_t bytes_written() const { return writer_->bytes_written(); }
  uint64_t bytes_expected() const { return bytes_expected_; }

 private:
  TableWriter() = default;
  std::unique_ptr<ContainerWriter> writer_;
  std::string path_;
  std::string name_;
  DType dtype_ = DType::kInvalid;
  std::vector<int64_t> shape_;
  uint64_t bytes_expected_ = 0;
};

// A stand-in for a table of any size: a sparse file of the exact shape that holds data only in the given rows, zero
// elsewhere. No block checksums (the metadata says so). Cost: n small writes, whatever the size of the table.
TFCTR_EXPORT Status WriteSurrogateTable(const std::string& path, const std::string& name, DType dtype,
                                        const std::vector<int64_t>& shape, const int64_t* row_ids, int64_t n,
                                        const void* rows);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_TABLE_FILE_H_
