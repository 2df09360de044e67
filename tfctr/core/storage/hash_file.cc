#include "tfctr/core/storage/hash_file.h"

#include <algorithm>
#include <utility>

#include "tfctr/core/storage/metadata_fields.h"

namespace tfctr {
namespace {

constexpr int64_t kRowAlign = 16;
constexpr uint64_t kLineBytes = sizeof(HashLine);

// What a line says of itself is possible.
bool PlausibleLine(const HashLine& line, int64_t size) {
  return line.count <= HashLine::kKeys && int64_t{line.first} + line.count <= size;
}

// What the overflow bits of line `l` must be.
uint16_t OverflowOf(const HashIndex& index, uint64_t l) {
  uint16_t overflow = 0;
  for (uint64_t next = l + 1; next < index.line_count && next <= l + HashLine::kMaxWalk; ++next) {
    const HashLine& line = index.lines[next];
    for (int k = 0; k < HashLine::kKeys && k < line.count; ++k) {
      const uint64_t hash = HashOfKey(line.keys[k], index.salt);
      if (HomeOfHash(hash, index.homes) > l) return overflow;
      overflow |= OverflowBit(hash);
    }
  }
  return overflow;
}

}  // namespace

int64_t StoredRowBytes(DType storage, int64_t dim) {
  switch (storage) {
    case DType::kFloat32:
      return 4 * dim;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2 * dim;
    case DType::kInt8:
      return 4 + dim;
    default:
      return 0;
  }
}

int64_t HashRowStride(DType storage, int64_t dim) {
  return (StoredRowBytes(storage, dim) + kRowAlign - 1) / kRowAlign * kRowAlign;
}

Result<std::shared_ptr<const HashFile>> HashFile::Open(const std::string& path) {
  Result<std::unique_ptr<Container>> container = Container::Open(path);
  if (!container.ok()) return container.status();
  return FromContainer(container.Take());
}

Result<std::shared_ptr<const HashFile>> HashFile::FromContainer(std::unique_ptr<Container> container) {
  const std::string& path = container->path();
  if (container->kind() != FileKind::kHash) return WrongKind(path, container->kind(), FileKind::kHash);
  const Metadata& metadata = container->metadata();
  const auto name = metadata.find("name");
  const auto storage = metadata.find("storage");
  std::shared_ptr<HashFile> file(new HashFile());
  HashIndex& index = file->index_;
  uint64_t index_offset = 0;
  if (name == metadata.end() || storage == metadata.end() || !ParseField(metadata, "dim", &file->dim_) ||
      !ParseField(metadata, "row_bytes", &file->row_bytes_) || !ParseField(metadata, "rows", &index.missing) ||
      !ParseField(metadata, "homes", &index.homes) || !ParseField(metadata, "lines", &index.line_count) ||
      !ParseField(metadata, "salt", &index.salt, 16) || !ParseField(metadata, "index_offset", &index_offset)) {
    return Status::Corrupt("'" + path + "': the metadata does not describe a hash table");
  }
  file->name_ = name->second;
  file->storage_ = DTypeFromName(storage->second);
  const uint64_t size = static_cast<uint64_t>(index.missing);
  const uint64_t total = container->data_bytes();
  // Every product below stays under 2^63.
  const bool possible = file->dim_ > 0 && file->dim_ <= kMaxHashDim && StoredRowBytes(file->storage_, file->dim_) > 0 &&
                        file->row_bytes_ == HashRowStride(file->storage_, file->dim_) && index.missing >= 0 &&
                        index.missing <= kMaxHashRows && index.homes > 0 && index.homes <= index.line_count &&
                        index.line_count <= total / kLineBytes && size <= index.line_count * HashLine::kKeys;
  const uint64_t row_bytes = possible ? (size + 1) * static_cast<uint64_t>(file->row_bytes_) : 0;
  if (!possible || index_offset != (row_bytes + kLineBytes - 1) / kLineBytes * kLineBytes || index_offset > total ||
      total - index_offset != index.line_count * kLineBytes) {
    return Status::Corrupt("'" + path + "' holds " + std::to_string(total) +
                           " bytes, not those of the hash table that its metadata describes");
  }
  index.lines = reinterpret_cast<const HashLine*>(container->data() + index_offset);
  const HashLine& first = index.lines[0];
  const HashLine& last = index.lines[index.line_count - 1];
  if (!PlausibleLine(first, index.missing) || first.first != 0 || !PlausibleLine(last, index.missing) ||
      last.first + last.count != index.missing || last.overflow != 0) {
    return Status::Corrupt("'" + path + "' is damaged: its index does not count " + std::to_string(size) + " keys");
  }
  file->container_ = std::move(container);
  return std::shared_ptr<const HashFile>(std::move(file));
}

Status HashFile::Keys(int64_t first, int64_t n, int64_t* keys) const {
  if (first < 0 || n < 0 || first > size() || n > size() - first) {
    return Status::Invalid("table '" + name_ + "' has no rows " + std::to_string(first) + " to " +
                           std::to_string(first + n) + ": it has " + std::to_string(size()));
  }
  if (n == 0) return Status::Ok();
  const Status damaged = Status::Corrupt("'" + path() + "' is damaged: its index is not in order");
  // The last line that starts at `first` or before.
  const HashLine* end = index_.lines + index_.line_count;
  const HashLine* line = std::upper_bound(index_.lines, end, first,
                                          [](int64_t row, const HashLine& at) { return row < int64_t{at.first}; });
  if (line == index_.lines) return damaged;
  --line;
  int64_t row = first;
  while (row < first + n) {
    if (line == end || !PlausibleLine(*line, size()) || row < line->first) return damaged;
    const int64_t stop = std::min(first + n, int64_t{line->first} + line->count);
    for (; row < stop; ++row) *keys++ = line->keys[row - line->first];
    ++line;
  }
  return Status::Ok();
}

Status HashFile::VerifyIndex() const {
  const auto damaged = [this](uint64_t line, const std::string& what) {
    return Status::Corrupt("'" + path() + "' is damaged: line " + std::to_string(line) + " of the index of table '" +
                           name_ + "' " + what);
  };
  int64_t row = 0;
  uint64_t before = 0;  // the last key's hash: keys lie in the order of their hashes
  for (uint64_t l = 0; l < index_.line_count; ++l) {
    const HashLine& line = index_.lines[l];
    if (!PlausibleLine(line, size()) || line.first != row) return damaged(l, "does not count on");
    for (int k = 0; k < HashLine::kKeys; ++k) {
      if (k >= line.count) {
        if (line.keys[k] != 0) return damaged(l, "holds a key beyond its count");
        continue;
      }
      const uint64_t hash = HashOfKey(line.keys[k], index_.salt);
      if (row > 0 && hash <= before) return damaged(l, "holds keys out of order");
      before = hash;
      int64_t number;
      index_.Find(&line.keys[k], 1, &number);
      if (number != row) return damaged(l, "holds key " + std::to_string(line.keys[k]) + " where it is not found");
      ++row;
    }
    if (line.overflow != OverflowOf(index_, l)) return damaged(l, "tells wrongly which keys lie further on");
  }
  if (row != size()) return damaged(index_.line_count - 1, "ends at row " + std::to_string(row));
  return Status::Ok();
}

}  // namespace tfctr
