#include "tfctr/core/storage/row_source.h"

#include <cstring>

#include "tfctr/core/storage/dtype.h"

namespace tfctr {

Status TensorRows::Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) {
  (void)last_step;
  TFCTR_RETURN_IF_ERROR(values_.Read(n, rows));
  numbers_.Take(n, keys);
  return Status::Ok();
}

Result<std::unique_ptr<RowSource>> CheckpointRows::Make(CheckpointColumn keys, CheckpointColumn values,
                                                        CheckpointColumn last_step, bool has_last_step) {
  if (keys.row_bytes() != sizeof(int64_t)) return Status::Corrupt("the table's keys are no int64 numbers");
  if (values.rows() != keys.rows() || (has_last_step && last_step.rows() != keys.rows())) {
    return Status::Corrupt("the table has " + std::to_string(keys.rows()) + " keys and " +
                           std::to_string(values.rows()) + " rows" +
                           (has_last_step ? ", " + std::to_string(last_step.rows()) + " last steps" : ""));
  }
  auto* made = new CheckpointRows();
  made->keys_ = std::move(keys);
  made->values_ = std::move(values);
  made->last_step_ = std::move(last_step);
  made->has_last_step_ = has_last_step;
  return std::unique_ptr<RowSource>(made);
}

Status CheckpointRows::Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) {
  TFCTR_RETURN_IF_ERROR(keys_.Read(n, keys));
  TFCTR_RETURN_IF_ERROR(values_.Read(n, rows));
  if (has_last_step_) TFCTR_RETURN_IF_ERROR(last_step_.Read(n, last_step));
  return Status::Ok();
}

Result<std::unique_ptr<RowSource>> TableFileRows::Open(const std::string& path, RowNumbers numbers) {
  Result<std::shared_ptr<const TableFile>> table = TableFile::Open(path);
  if (!table.ok()) return table.status();
  Result<UniqueFd> fd = OpenForRead(path);
  if (!fd.ok()) return fd.status();
  auto* made = new TableFileRows();
  made->table_ = table.Take();
  made->fd_ = fd.Take();
  made->row_bytes_ = static_cast<uint64_t>(made->table_->width()) * DTypeSize(made->table_->dtype());
  made->numbers_ = numbers;
  return std::unique_ptr<RowSource>(made);
}

Status TableFileRows::Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) {
  (void)last_step;
  const uint64_t at = static_cast<uint64_t>(next_) * row_bytes_;
  TFCTR_RETURN_IF_ERROR(ReadAt(fd_, table_->path(), at, rows, static_cast<uint64_t>(n) * row_bytes_));
  numbers_.Take(n, keys);
  next_ += n;
  return Status::Ok();
}

HashFileRows::HashFileRows(std::shared_ptr<const HashFile> file)
    : file_(std::move(file)), row_bytes_(static_cast<uint64_t>(StoredRowBytes(file_->storage(), file_->dim()))) {}

Status HashFileRows::Read(int64_t n, int64_t* keys, uint8_t* rows, int64_t* last_step) {
  (void)last_step;
  TFCTR_RETURN_IF_ERROR(file_->Keys(next_, n, keys));
  for (int64_t k = 0; k < n; ++k) {
    std::memcpy(rows + static_cast<uint64_t>(k) * row_bytes_, file_->rows() + (next_ + k) * file_->row_bytes(),
                row_bytes_);
  }
  next_ += n;
  return Status::Ok();
}

}  // namespace tfctr
