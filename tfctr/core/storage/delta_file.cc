#include "tfctr/core/storage/delta_file.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tfctr/core/storage/metadata_fields.h"

namespace tfctr {
namespace {

constexpr uint64_t kSectionAlign = 64;

// The place of the first key that is not above the one before it; n when all ascend.
int64_t FirstDisorder(const int64_t* keys, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    if (keys[i] <= keys[i - 1]) return i;
  }
  return n;
}

// A key that is in both ascending lists.
const int64_t* FirstCommon(const int64_t* a, int64_t n, const int64_t* b, int64_t m) {
  const int64_t* const a_end = a + n;
  const int64_t* const b_end = b + m;
  while (a != a_end && b != b_end) {
    if (*a == *b) return a;
    if (*a < *b) {
      ++a;
    } else {
      ++b;
    }
  }
  return nullptr;
}

const char* KeyWord(const RowShape& shape) { return shape.hashed ? "key " : "row "; }

}  // namespace

Result<std::shared_ptr<const DeltaFile>> DeltaFile::Open(const std::string& path) {
  Result<std::unique_ptr<Container>> container = Container::Open(path);
  if (!container.ok()) return container.status();
  return FromContainer(container.Take());
}

Result<std::shared_ptr<const DeltaFile>> DeltaFile::FromContainer(std::unique_ptr<Container> container) {
  const std::string& path = container->path();
  if (container->kind() != FileKind::kDelta) return WrongKind(path, container->kind(), FileKind::kDelta);
  const Metadata& metadata = container->metadata();
  std::shared_ptr<DeltaFile> file(new DeltaFile());
  uint64_t keys_offset = 0;
  uint64_t removed_offset = 0;
  if (metadata.count("name") == 0 || !ReadRowShape(metadata, &file->shape_) ||
      !ParseField(metadata, "table_rows", &file->table_rows_) || !ParseField(metadata, "rows", &file->rows_) ||
      !ParseField(metadata, "removed", &file->removed_) || !ParseField(metadata, "keys_offset", &keys_offset) ||
      !ParseField(metadata, "removed_offset", &removed_offset)) {
    return Status::Corrupt("'" + path + "': the metadata does not describe a delta");
  }
  const uint64_t total = container->data_bytes();
  const uint64_t most = total / sizeof(int64_t);
  const uint64_t rows = static_cast<uint64_t>(file->rows_);
  const uint64_t removed = static_cast<uint64_t>(file->removed_);
  const uint64_t row_bytes = static_cast<uint64_t>(file->shape_.row_bytes);
  if (file->table_rows_ < 0 || rows > most || removed > most || rows > total / row_bytes ||
      keys_offset != RoundUp(rows * row_bytes, kSectionAlign) ||
      removed_offset != RoundUp(keys_offset + rows * sizeof(int64_t), kSectionAlign) ||
      total != removed_offset + removed * sizeof(int64_t)) {
    return Status::Corrupt("'" + path + "' holds " + std::to_string(total) +
                           " bytes, not those of the delta that its metadata describes");
  }
  file->name_ = TextField(metadata, "name");
  file->keys_ = reinterpret_cast<const int64_t*>(container->data() + keys_offset);
  file->removed_keys_ = reinterpret_cast<const int64_t*>(container->data() + removed_offset);
  file->container_ = std::move(container);
  return std::shared_ptr<const DeltaFile>(std::move(file));
}

Status DeltaFile::VerifyKeys() const {
  const auto damaged = [this](const std::string& what) { return Status::Corrupt("'" + path() + "': " + what); };
  if (const int64_t at = FirstDisorder(keys_, rows_); at != rows_) {
    return damaged("its keys do not ascend at place " + std::to_string(at));
  }
  if (const int64_t at = FirstDisorder(removed_keys_, removed_); at != removed_) {
    return damaged("its removed keys do not ascend at place " + std::to_string(at));
  }
  if (const int64_t* key = FirstCommon(keys_, rows_, removed_keys_, removed_)) {
    return damaged(KeyWord(shape_) + std::to_string(*key) + " of table '" + name_ + "' is both added and removed");
  }
  if (shape_.hashed) return Status::Ok();
  if (removed_ > 0) return damaged("rows of the static table '" + name_ + "' can't be removed");
  if (rows_ > 0 && (keys_[0] < 0 || keys_[rows_ - 1] >= table_rows_)) {
    return damaged("row " + std::to_string(keys_[0] < 0 ? keys_[0] : keys_[rows_ - 1]) + " of table '" + name_ +
                   "' is not in [0, " + std::to_string(table_rows_) + ")");
  }
  return Status::Ok();
}

Result<std::unique_ptr<DeltaFileWriter>> DeltaFileWriter::Create(const std::string& path, const std::string& name,
                                                                 const RowShape& shape, int64_t table_rows,
                                                                 Metadata extra) {
  const Result<RowShape> made = MakeRowShape(shape.hashed, shape.dtype, shape.width);
  if (!made.ok()) return Status::Invalid("delta of table '" + name + "': " + made.status().message);
  if (!(made.value() == shape) || table_rows < 0) {
    return Status::Invalid("delta of table '" + name + "': no table has " + std::to_string(table_rows) + " " +
                           RowShapeText(shape) + " of " + std::to_string(shape.row_bytes) + " bytes");
  }
  Result<std::unique_ptr<ContainerWriter>> container = ContainerWriter::Create(path, FileKind::kDelta);
  if (!container.ok()) return container.status();
  std::unique_ptr<DeltaFileWriter> writer(new DeltaFileWriter());
  writer->writer_ = container.Take();
  writer->name_ = name;
  writer->shape_ = shape;
  writer->table_rows_ = shape.hashed ? 0 : table_rows;
  writer->extra_ = std::move(extra);
  return writer;
}

Status DeltaFileWriter::Add(const int64_t* keys, int64_t n, const void* rows, int64_t stride) {
  if (stride == 0) stride = shape_.row_bytes;
  const int64_t stored = shape_.hashed ? StoredRowBytes(shape_.dtype, shape_.width) : shape_.row_bytes;
  if (n < 0 || stride < stored) {
    return Status::Invalid("delta of table '" + name_ + "': rows of " + std::to_string(stride) + " bytes, expected " +
                           std::to_string(stored));
  }
  const size_t at = rows_.size();
  rows_.resize(at + static_cast<size_t>(n) * static_cast<size_t>(shape_.row_bytes));
  keys_.insert(keys_.end(), keys, keys + n);
  const uint8_t* from = static_cast<const uint8_t*>(rows);
  uint8_t* to = rows_.data() + at;
  for (int64_t i = 0; i < n; ++i, from += stride, to += shape_.row_bytes) {
    std::memcpy(to, from, static_cast<size_t>(stored));  // what lies behind it stays 0
  }
  return Status::Ok();
}

Status DeltaFileWriter::Remove(const int64_t* keys, int64_t n) {
  if (n < 0) return Status::Invalid("delta of table '" + name_ + "': a negative number of keys");
  if (!shape_.hashed && n > 0) {
    return Status::Invalid("delta of table '" + name_ + "': rows of a static table can't be removed (row " +
                           std::to_string(keys[0]) + ")");
  }
  removed_.insert(removed_.end(), keys, keys + n);
  return Status::Ok();
}

Status DeltaFileWriter::Finish() {
  const auto refuse = [this](int64_t key, const std::string& what) {
    return Status::Invalid("delta of table '" + name_ + "': " + KeyWord(shape_) + std::to_string(key) + " " + what);
  };
  std::vector<int64_t> order(keys_.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(),
            [this](int64_t a, int64_t b) { return keys_[static_cast<size_t>(a)] < keys_[static_cast<size_t>(b)]; });
  std::vector<int64_t> sorted(keys_.size());
  for (size_t i = 0; i < order.size(); ++i) sorted[i] = keys_[static_cast<size_t>(order[i])];
  keys_ = std::move(sorted);
  std::sort(removed_.begin(), removed_.end());
  if (const int64_t at = FirstDisorder(keys_.data(), rows()); at != rows()) {
    return refuse(keys_[static_cast<size_t>(at)], "is given twice");
  }
  if (const int64_t at = FirstDisorder(removed_.data(), removed()); at != removed()) {
    return refuse(removed_[static_cast<size_t>(at)], "is removed twice");
  }
  if (const int64_t* key = FirstCommon(keys_.data(), rows(), removed_.data(), removed())) {
    return refuse(*key, "is both added and removed");
  }
  if (!shape_.hashed && rows() > 0 && (keys_.front() < 0 || keys_.back() >= table_rows_)) {
    return refuse(keys_.front() < 0 ? keys_.front() : keys_.back(),
                  "is not in [0, " + std::to_string(table_rows_) + ")");
  }
  return Write(order);
}

Status DeltaFileWriter::Write(const std::vector<int64_t>& order) {
  const size_t row_bytes = static_cast<size_t>(shape_.row_bytes);
  std::vector<uint8_t> block;
  block.reserve(kBlockBytes + row_bytes);
  for (const int64_t row : order) {
    const uint8_t* const from = rows_.data() + static_cast<size_t>(row) * row_bytes;
    block.insert(block.end(), from, from + row_bytes);
    if (block.size() < kBlockBytes) continue;
    TFCTR_RETURN_IF_ERROR(writer_->Append(block.data(), block.size()));
    block.clear();
  }
  TFCTR_RETURN_IF_ERROR(writer_->Append(block.data(), block.size()));
  const uint8_t zeros[kSectionAlign] = {};
  Metadata metadata = extra_;
  const auto section = [&](const char* key, const std::vector<int64_t>& keys) {
    const uint64_t at = RoundUp(writer_->bytes_written(), kSectionAlign);
    metadata[key] = std::to_string(at);
    TFCTR_RETURN_IF_ERROR(writer_->Append(zeros, at - writer_->bytes_written()));
    return writer_->Append(keys.data(), keys.size() * sizeof(int64_t));
  };
  TFCTR_RETURN_IF_ERROR(section("keys_offset", keys_));
  TFCTR_RETURN_IF_ERROR(section("removed_offset", removed_));
  PutRowShape(shape_, &metadata);
  metadata["kind"] = "delta";
  metadata["name"] = name_;
  metadata["table_rows"] = std::to_string(table_rows_);
  metadata["rows"] = std::to_string(rows());
  metadata["removed"] = std::to_string(removed());
  return writer_->Finish(metadata);
}

}  // namespace tfctr
