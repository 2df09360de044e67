#include "tfctr/core/storage/table_file.h"

#include <charconv>
#include <utility>

namespace tfctr {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text;
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  return text;
}

bool ParseShape(const std::string& text, std::vector<int64_t>* shape) {
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    int64_t dim = 0;
    const auto [next, error] = std::from_chars(p, end, dim);
    if (error != std::errc() || dim < 0) return false;
    shape->push_back(dim);
    if (next == end) return true;
    if (*next != ',' || next + 1 == end) return false;
    p = next + 1;
  }
  return text.empty();  // rank 0
}

Metadata TableMetadata(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
  return {{"kind", "table"}, {"name", name}, {"dtype", DTypeName(dtype)}, {"shape", ShapeText(shape)}};
}

Result<uint64_t> CheckedBytes(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
  Result<uint64_t> bytes = DenseBytes(dtype, shape);
  if (!bytes.ok()) return Status::Invalid("table '" + name + "': " + bytes.status().message);
  return bytes;
}

}  // namespace

Result<std::shared_ptr<const TableFile>> TableFile::Open(const std::string& path) {
  Result<std::unique_ptr<Container>> container = Container::Open(path);
  if (!container.ok()) return container.status();
  return FromContainer(container.Take());
}

Result<std::shared_ptr<const TableFile>> TableFile::FromContainer(std::unique_ptr<Container> container) {
  const std::string& path = container->path();
  if (container->kind() != FileKind::kTable) return WrongKind(path, container->kind(), FileKind::kTable);
  const Metadata& metadata = container->metadata();
  const auto name = metadata.find("name");
  const auto dtype = metadata.find("dtype");
  const auto shape = metadata.find("shape");
  std::shared_ptr<TableFile> table(new TableFile());
  if (name == metadata.end() || dtype == metadata.end() || shape == metadata.end() ||
      (table->dtype_ = DTypeFromName(dtype->second)) == DType::kInvalid || !ParseShape(shape->second, &table->shape_)) {
    return Status::Corrupt("'" + path + "': the metadata does not describe a table");
  }
  table->name_ = name->second;
  const Result<uint64_t> bytes = DenseBytes(table->dtype_, table->shape_);
  if (!bytes.ok() || bytes.value() != container->data_bytes()) {
    return Status::Corrupt("'" + path + "' holds " + std::to_string(container->data_bytes()) + " bytes, not those of " +
                           DTypeName(table->dtype_) + " [" + ShapeText(table->shape_) + "]");
  }
  for (size_t i = 1; i < table->shape_.size(); ++i) {
    // Cannot overflow unless a dimension is 0, and then the width does not matter.
    if (__builtin_mul_overflow(table->width_, table->shape_[i], &table->width_)) table->width_ = 0;
  }
  table->container_ = std::move(container);
  return std::shared_ptr<const TableFile>(std::move(table));
}

Result<std::unique_ptr<TableWriter>> TableWriter::Create(const std::string& path, const std::string& name, DType dtype,
                                                         const std::vector<int64_t>& shape) {
  const Result<uint64_t> bytes = CheckedBytes(name, dtype, shape);
  if (!bytes.ok()) return bytes.status();
  Result<std::unique_ptr<ContainerWriter>> container = ContainerWriter::Create(path, FileKind::kTable);
  if (!container.ok()) return container.status();
  std::unique_ptr<TableWriter> writer(new TableWriter());
  writer->writer_ = container.Take();
  writer->path_ = path;
  writer->name_ = name;
  writer->dtype_ = dtype;
  writer->shape_ = shape;
  writer->bytes_expected_ = bytes.value();
  return writer;
}

Status TableWriter::Append(const void* data, uint64_t bytes) {
  if (bytes > bytes_expected_ - bytes_written()) {
    return Status::Invalid("table '" + name_ + "': more data than its shape holds (" + std::to_string(bytes_expected_) +
                           " bytes)");
  }
  return writer_->Append(data, bytes);
}

Status TableWriter::Finish() {
  if (bytes_written() != bytes_expected_) {
    return Status::Invalid("table '" + name_ + "': got " + std::to_string(bytes_written()) + " of " +
                           std::to_string(bytes_expected_) + " bytes");
  }
  return writer_->Finish(TableMetadata(name_, dtype_, shape_));
}

Status WriteSurrogateTable(const std::string& path, const std::string& name, DType dtype,
                           const std::vector<int64_t>& shape, const int64_t* row_ids, int64_t n, const void* rows) {
  const Result<uint64_t> bytes = CheckedBytes(name, dtype, shape);
  if (!bytes.ok()) return bytes.status();
  if (shape.empty() && n > 0) return Status::Invalid("surrogate table '" + name + "': rank 0 has no rows");
  const int64_t row_count = shape.empty() ? 0 : shape[0];
  const uint64_t stride = row_count == 0 ? 0 : bytes.value() / static_cast<uint64_t>(row_count);
  Result<std::unique_ptr<ContainerWriter>> container = ContainerWriter::Create(path, FileKind::kTable);
  if (!container.ok()) return container.status();
  ContainerWriter& writer = *container.value();
  TFCTR_RETURN_IF_ERROR(writer.SetSparseLength(bytes.value()));
  const uint8_t* row = static_cast<const uint8_t*>(rows);
  for (int64_t i = 0; i < n; ++i, row += stride) {
    if (row_ids[i] < 0 || row_ids[i] >= row_count) {
      return Status::Invalid("surrogate table '" + name + "': row " + std::to_string(row_ids[i]) + " is not in [0, " +
                             std::to_string(row_count) + ")");
    }
    TFCTR_RETURN_IF_ERROR(writer.WriteAt(static_cast<uint64_t>(row_ids[i]) * stride, row, stride));
  }
  Metadata metadata = TableMetadata(name, dtype, shape);
  metadata["surrogate"] = "rows=" + std::to_string(n);
  metadata["checksums"] = "none";
  return writer.Finish(metadata);
}

}  // namespace tfctr
