// Merges a previous overlay and deltas, all sorted by key, into one overlay file.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tfctr/core/storage/metadata_fields.h"
#include "tfctr/core/storage/overlay_file.h"

namespace tfctr {
namespace {

constexpr uint64_t kSectionAlign = 64;
constexpr uint32_t kMinBitmapLog2 = 9;  // one cache line
constexpr uint64_t kBitsPerKey = 16;    // at least; at most twice that
constexpr uint64_t kKeysOfHome = 2;     // on average: half of its slots
constexpr uint64_t kTail = 64;          // slots behind the homes; no probe is longer than that
constexpr int kSalts = 64;              // before giving up

struct Entry {
  int64_t key;
  const uint8_t* row;  // null: removed
};

// `newer` over `older`, both by ascending key.
std::vector<Entry> Merge(const std::vector<Entry>& older, const std::vector<Entry>& newer) {
  std::vector<Entry> merged;
  merged.reserve(older.size() + newer.size());
  auto a = older.begin();
  auto b = newer.begin();
  while (a != older.end() || b != newer.end()) {
    if (b == newer.end() || (a != older.end() && a->key < b->key)) {
      merged.push_back(*a++);
      continue;
    }
    if (a != older.end() && a->key == b->key) ++a;
    merged.push_back(*b++);
  }
  return merged;
}

// Rows and removed keys of a delta or an overlay, as one ascending list.
template <typename File>
std::vector<Entry> EntriesOf(const File& file) {
  std::vector<Entry> entries;
  entries.reserve(static_cast<size_t>(file.rows() + file.removed()));
  int64_t r = 0;
  for (int64_t i = 0; i < file.rows(); ++i) {
    while (r < file.removed() && file.removed_keys()[r] < file.keys()[i]) {
      entries.push_back({file.removed_keys()[r++], nullptr});
    }
    entries.push_back({file.keys()[i], file.row(i)});
  }
  for (; r < file.removed(); ++r) entries.push_back({file.removed_keys()[r], nullptr});
  return entries;
}

Status CheckDelta(const DeltaFile& delta, const TableBase& base) {
  if (delta.name() != base.name) {
    return Status::Invalid("the delta '" + delta.path() + "' is of table '" + delta.name() + "', not of '" + base.name +
                           "'");
  }
  if (!(delta.shape() == base.shape) || (!base.shape.hashed && delta.table_rows() != base.rows)) {
    const auto text = [](const RowShape& shape, int64_t rows) {
      return (shape.hashed ? "" : std::to_string(rows) + " ") + RowShapeText(shape);
    };
    return Status::Invalid("the delta '" + delta.path() + "' of table '" + base.name + "' has " +
                           text(delta.shape(), delta.table_rows()) + ", the table has " + text(base.shape, base.rows));
  }
  return delta.VerifyKeys();
}

Result<std::vector<Entry>> MergedEntries(const TableBase& base, const OverlayFile* previous,
                                         const std::vector<const DeltaFile*>& deltas) {
  std::vector<Entry> entries;
  if (previous != nullptr) {
    TFCTR_RETURN_IF_ERROR(previous->CheckBase(base));
    entries = EntriesOf(*previous);
  }
  for (const DeltaFile* delta : deltas) {
    TFCTR_RETURN_IF_ERROR(CheckDelta(*delta, base));
    const std::vector<Entry> newer = EntriesOf(*delta);
    entries = entries.empty() ? newer : Merge(entries, newer);
  }
  return entries;
}

// What the overlay will hold: rows and removed keys, each by ascending key.
struct Parts {
  std::vector<int64_t> keys;
  std::vector<const uint8_t*> rows;
  std::vector<int64_t> removed;
  int64_t added = 0;
};

Parts Split(const TableBase& base, const std::vector<Entry>& entries) {
  Parts parts;
  constexpr size_t kBlock = 1024;
  int64_t keys[kBlock];
  int64_t numbers[kBlock];
  for (size_t begin = 0; begin < entries.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, entries.size() - begin);
    for (size_t i = 0; i < n; ++i) keys[i] = entries[begin + i].key;
    if (base.index != nullptr) base.index->Find(keys, n, numbers);
    for (size_t i = 0; i < n; ++i) {
      const Entry& entry = entries[begin + i];
      const bool in_base = base.index == nullptr || numbers[i] != base.index->missing;
      if (entry.row != nullptr) {
        parts.keys.push_back(entry.key);
        parts.rows.push_back(entry.row);
        parts.added += in_base ? 0 : 1;
      } else if (in_base) {
        parts.removed.push_back(entry.key);
      }
    }
  }
  return parts;
}

struct Index {
  uint64_t salt = 0;
  uint64_t homes = 1;
  uint32_t bitmap_log2 = kMinBitmapLog2;
  std::vector<uint64_t> bitmap;
  std::vector<OverlaySlot> slots;
};

// False when some key would lie too far from its home under this salt.
bool Fill(const Parts& parts, bool hashed, Index* index) {
  constexpr uint64_t kSlotsOfHome = OverlayIndex::kSlotsOfHome;
  index->slots.assign(index->homes * kSlotsOfHome + kTail, OverlaySlot{0, OverlaySlot::kEmpty});
  index->bitmap.assign((size_t{1} << index->bitmap_log2) / 64, 0);
  const uint32_t bits_shift = 64 - 6 - index->bitmap_log2;
  const auto put = [index, hashed, bits_shift](int64_t key, int64_t row) {
    const uint64_t hash = hashed ? HashOfKey(key, index->salt) : HashOfId(key, index->salt);
    const uint64_t place = hash >> bits_shift;
    index->bitmap[place >> 12] |= (uint64_t{1} << ((place >> 6) & 63)) | (uint64_t{1} << (place & 63));
    OverlaySlot* slot = index->slots.data() + kSlotsOfHome * HomeOfHash(hash, index->homes);
    const OverlaySlot* const last = slot + kTail - 1;
    while (slot->row != OverlaySlot::kEmpty) {
      if (slot++ == last) return false;
    }
    *slot = OverlaySlot{key, row};
    return true;
  };
  for (size_t i = 0; i < parts.keys.size(); ++i) {
    if (!put(parts.keys[i], static_cast<int64_t>(i))) return false;
  }
  for (const int64_t key : parts.removed) {
    if (!put(key, OverlaySlot::kRemoved)) return false;
  }
  return true;
}

// Equal input gives an equal file.
Status MakeIndex(const TableBase& base, const Parts& parts, Index* index) {
  const uint64_t keys = parts.keys.size() + parts.removed.size();
  index->homes = keys / kKeysOfHome + 1;
  while ((uint64_t{1} << index->bitmap_log2) < keys * kBitsPerKey) ++index->bitmap_log2;
  // That of a hash file: then a key is hashed once for both.
  uint64_t salt = base.shape.hashed ? base.index->salt : keys;
  for (int attempt = 0; attempt < kSalts; ++attempt) {
    index->salt = salt;
    if (Fill(parts, base.shape.hashed, index)) return Status::Ok();
    salt = HashOfKey(static_cast<int64_t>(salt), static_cast<uint64_t>(attempt));
  }
  return Status::Invalid("table '" + base.name + "': no salt spreads the " + std::to_string(keys) +
                         " keys of its overlay");
}

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

Status WriteRows(const Parts& parts, size_t row_bytes, ContainerWriter* writer) {
  std::vector<uint8_t> block;
  block.reserve(std::min<size_t>(kBlockBytes, parts.rows.size() * row_bytes) + row_bytes);
  for (const uint8_t* row : parts.rows) {
    block.insert(block.end(), row, row + row_bytes);
    if (block.size() < kBlockBytes) continue;
    TFCTR_RETURN_IF_ERROR(writer->Append(block.data(), block.size()));
    block.clear();
  }
  return writer->Append(block.data(), block.size());
}

// Writes everything but the end; `metadata` is what Finish needs.
Status WritePayload(const TableBase& base, const OverlayFile* previous, const std::vector<const DeltaFile*>& deltas,
                    ContainerWriter* writer, Metadata* metadata, OverlayStats* stats) {
  const Result<std::vector<Entry>> entries = MergedEntries(base, previous, deltas);
  if (!entries.ok()) return entries.status();
  const Parts parts = Split(base, entries.value());
  Index index;
  TFCTR_RETURN_IF_ERROR(MakeIndex(base, parts, &index));
  TFCTR_RETURN_IF_ERROR(WriteRows(parts, static_cast<size_t>(base.shape.row_bytes), writer));
  const auto section = [&](const char* key, const void* data, uint64_t bytes) {
    const uint8_t zeros[kSectionAlign] = {};
    const uint64_t at = RoundUp(writer->bytes_written(), kSectionAlign);
    (*metadata)[key] = std::to_string(at);
    TFCTR_RETURN_IF_ERROR(writer->Append(zeros, at - writer->bytes_written()));
    return writer->Append(data, bytes);
  };
  TFCTR_RETURN_IF_ERROR(section("keys_offset", parts.keys.data(), parts.keys.size() * sizeof(int64_t)));
  TFCTR_RETURN_IF_ERROR(section("removed_offset", parts.removed.data(), parts.removed.size() * sizeof(int64_t)));
  TFCTR_RETURN_IF_ERROR(section("bitmap_offset", index.bitmap.data(), index.bitmap.size() * sizeof(uint64_t)));
  TFCTR_RETURN_IF_ERROR(section("slots_offset", index.slots.data(), index.slots.size() * sizeof(OverlaySlot)));
  PutRowShape(base.shape, metadata);
  (*metadata)["kind"] = "overlay";
  (*metadata)["name"] = base.name;
  (*metadata)["base"] = base.fingerprint;
  (*metadata)["base_rows"] = std::to_string(base.rows);
  (*metadata)["rows"] = std::to_string(parts.keys.size());
  (*metadata)["added"] = std::to_string(parts.added);
  (*metadata)["removed"] = std::to_string(parts.removed.size());
  (*metadata)["bitmap_log2"] = std::to_string(index.bitmap_log2);
  (*metadata)["homes"] = std::to_string(index.homes);
  (*metadata)["slots"] = std::to_string(index.slots.size());
  (*metadata)["salt"] = Hex(index.salt);
  if (stats != nullptr) {
    stats->rows = static_cast<int64_t>(parts.keys.size());
    stats->added = parts.added;
    stats->removed = static_cast<int64_t>(parts.removed.size());
    stats->bytes = writer->bytes_written();
  }
  return Status::Ok();
}

}  // namespace

Status BuildOverlay(const std::string& path, const TableBase& base, const OverlayFile* previous,
                    const std::vector<const DeltaFile*>& deltas, const Metadata& extra, OverlayStats* stats) {
  Result<std::unique_ptr<ContainerWriter>> writer = ContainerWriter::Create(path, FileKind::kOverlay);
  if (!writer.ok()) return writer.status();
  Metadata metadata = extra;
  TFCTR_RETURN_IF_ERROR(WritePayload(base, previous, deltas, writer.value().get(), &metadata, stats));
  return writer.value()->Finish(metadata);
}

Result<UniqueFd> BuildOverlayInMemory(const TableBase& base, const OverlayFile* previous,
                                      const std::vector<const DeltaFile*>& deltas, const Metadata& extra,
                                      OverlayStats* stats) {
  Result<std::unique_ptr<ContainerWriter>> writer =
      ContainerWriter::InMemory("overlay of table '" + base.name + "'", FileKind::kOverlay);
  if (!writer.ok()) return writer.status();
  Metadata metadata = extra;
  TFCTR_RETURN_IF_ERROR(WritePayload(base, previous, deltas, writer.value().get(), &metadata, stats));
  return writer.value()->FinishInMemory(metadata);
}

}  // namespace tfctr
