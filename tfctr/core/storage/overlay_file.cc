#include "tfctr/core/storage/overlay_file.h"

#include <utility>

#include "tfctr/core/storage/metadata_fields.h"

namespace tfctr {
namespace {

constexpr uint64_t kSectionAlign = 64;

Status AscendingKeys(const std::string& path, const int64_t* keys, int64_t n, const char* what) {
  for (int64_t i = 1; i < n; ++i) {
    if (keys[i] <= keys[i - 1]) {
      return Status::Corrupt("'" + path + "' is damaged: " + what + " do not ascend at place " + std::to_string(i));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<const OverlayFile>> OverlayFile::Open(const std::string& path) {
  Result<std::unique_ptr<Container>> container = Container::Open(path);
  if (!container.ok()) return container.status();
  return FromContainer(container.Take());
}

Result<std::shared_ptr<const OverlayFile>> OverlayFile::FromContainer(std::unique_ptr<Container> container) {
  const std::string& path = container->path();
  if (container->kind() != FileKind::kOverlay) return WrongKind(path, container->kind(), FileKind::kOverlay);
  const Metadata& metadata = container->metadata();
  std::shared_ptr<OverlayFile> file(new OverlayFile());
  OverlayIndex& index = file->index_;
  uint32_t bitmap_log2 = 0;
  uint64_t offsets[4] = {};  // keys, removed keys, bitmap, slots
  if (metadata.count("name") == 0 || metadata.count("base") == 0 || !ReadRowShape(metadata, &file->shape_) ||
      !ParseField(metadata, "base_rows", &file->base_rows_) || !ParseField(metadata, "rows", &index.rows) ||
      !ParseField(metadata, "added", &file->added_) || !ParseField(metadata, "removed", &file->removed_) ||
      !ParseField(metadata, "bitmap_log2", &bitmap_log2) || !ParseField(metadata, "homes", &index.homes) ||
      !ParseField(metadata, "slots", &index.slot_count) || !ParseField(metadata, "salt", &index.salt, 16) ||
      !ParseField(metadata, "keys_offset", &offsets[0]) || !ParseField(metadata, "removed_offset", &offsets[1]) ||
      !ParseField(metadata, "bitmap_offset", &offsets[2]) || !ParseField(metadata, "slots_offset", &offsets[3])) {
    return Status::Corrupt("'" + path + "': the metadata does not describe an overlay");
  }
  const uint64_t total = container->data_bytes();
  const uint64_t rows = static_cast<uint64_t>(index.rows);
  const uint64_t removed = static_cast<uint64_t>(file->removed_);
  const uint64_t row_bytes = static_cast<uint64_t>(file->shape_.row_bytes);
  // Every product below stays under 2^63.
  const bool possible = rows <= total / row_bytes && rows <= total / sizeof(int64_t) &&
                        removed <= total / sizeof(int64_t) && file->base_rows_ >= 0 && file->added_ >= 0 &&
                        file->added_ <= index.rows && bitmap_log2 >= 9 && bitmap_log2 < 40 && index.homes > 0 &&
                        index.homes <= index.slot_count / OverlayIndex::kSlotsOfHome &&
                        index.slot_count <= total / sizeof(OverlaySlot);
  if (!possible || offsets[0] != RoundUp(rows * row_bytes, kSectionAlign) ||
      offsets[1] != RoundUp(offsets[0] + rows * sizeof(int64_t), kSectionAlign) ||
      offsets[2] != RoundUp(offsets[1] + removed * sizeof(int64_t), kSectionAlign) ||
      offsets[3] != RoundUp(offsets[2] + (uint64_t{1} << bitmap_log2) / 8, kSectionAlign) ||
      total != offsets[3] + index.slot_count * sizeof(OverlaySlot)) {
    return Status::Corrupt("'" + path + "' holds " + std::to_string(total) +
                           " bytes, not those of the overlay that its metadata describes");
  }
  const uint8_t* const data = container->data();
  file->name_ = TextField(metadata, "name");
  file->base_fingerprint_ = TextField(metadata, "base");
  file->keys_ = reinterpret_cast<const int64_t*>(data + offsets[0]);
  file->removed_keys_ = reinterpret_cast<const int64_t*>(data + offsets[1]);
  index.bitmap = reinterpret_cast<const uint64_t*>(data + offsets[2]);
  index.bits_shift = 64 - 6 - bitmap_log2;
  index.slots = reinterpret_cast<const OverlaySlot*>(data + offsets[3]);
  index.missing = file->base_rows_;
  index.hashed = file->shape_.hashed;
  file->container_ = std::move(container);
  return std::shared_ptr<const OverlayFile>(std::move(file));
}

Status OverlayFile::VerifyIndex() const {
  TFCTR_RETURN_IF_ERROR(AscendingKeys(path(), keys_, rows(), "its keys"));
  TFCTR_RETURN_IF_ERROR(AscendingKeys(path(), removed_keys_, removed_, "its removed keys"));
  int64_t used = 0;
  for (uint64_t i = 0; i < index_.slot_count; ++i) used += index_.slots[i].row == OverlaySlot::kEmpty ? 0 : 1;
  const auto damaged = [this](const std::string& what) {
    return Status::Corrupt("'" + path() + "' is damaged: " + what);
  };
  if (used != rows() + removed_) {
    return damaged("its index holds " + std::to_string(used) + " keys, expected " + std::to_string(rows() + removed_));
  }
  constexpr int64_t kUnknown = -1;  // no number is negative
  for (int64_t i = 0; i < rows() + removed_; ++i) {
    const int64_t key = i < rows() ? keys_[i] : removed_keys_[i - rows()];
    const int64_t expected = i < rows() ? index_.first_row + i : index_.missing;
    if (index_.Find(key, kUnknown) != expected) return damaged("its index does not find key " + std::to_string(key));
  }
  if (!shape_.hashed &&
      (removed_ > 0 || added_ > 0 || (rows() > 0 && (keys_[0] < 0 || keys_[rows() - 1] >= base_rows_)))) {
    return damaged("it has rows that the static table '" + name_ + "' does not have");
  }
  return Status::Ok();
}

Status OverlayFile::CheckBase(const TableBase& base) const {
  if (base_fingerprint_ != base.fingerprint) {
    return Status::Invalid("the overlay '" + path() + "' lies over the file " + base_fingerprint_ + " of table '" +
                           name_ + "', but '" + base.path + "' is " + base.fingerprint + " of table '" + base.name +
                           "'");
  }
  if (!(shape_ == base.shape) || base_rows_ != base.rows) {
    return Status::Invalid("the overlay '" + path() + "' lies over " + std::to_string(base_rows_) + " " +
                           RowShapeText(shape_) + ", but '" + base.path + "' has " + std::to_string(base.rows) + " " +
                           RowShapeText(base.shape));
  }
  return Status::Ok();
}

}  // namespace tfctr
