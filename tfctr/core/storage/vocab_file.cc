#include "tfctr/core/storage/vocab_file.h"

#include <charconv>
#include <limits>
#include <utility>

#include "tfctr/core/storage/other_format.h"

namespace tfctr {
namespace {

constexpr uint64_t kSectionAlign = 64;
constexpr uint64_t kMinSlots = 8;
constexpr uint64_t kBucketRecords = 2;  // at most so many on average: most buckets are within two cache lines
constexpr size_t kWriteBlock = 1 << 20;
constexpr uint64_t kMaxEntries = uint64_t{1} << 31;

uint64_t AlignUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

template <typename Int>
bool ParseInt(const Metadata& metadata, const char* key, Int* out) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) return false;
  const char* end = it->second.data() + it->second.size();
  const auto [next, error] = std::from_chars(it->second.data(), end, *out);
  return error == std::errc() && next == end;
}

// At most 60 bytes of a key, printable, for messages.
std::string Quoted(std::string_view key) {
  std::string text = "'";
  for (const char c : key.substr(0, 60)) text += c >= 0x20 && c < 0x7f ? c : '?';
  return text + (key.size() > 60 ? "...'" : "'");
}

Status AppendPadded(ContainerWriter* writer, const void* data, uint64_t bytes) {
  TFCTR_RETURN_IF_ERROR(writer->Append(data, bytes));
  const char zeros[kSectionAlign] = {};
  return writer->Append(zeros, AlignUp(bytes, kSectionAlign) - bytes);
}

Status TooLarge(const std::string& name) {
  return Status::Invalid("vocabulary '" + name + "' is too large: at most 2^31 keys and 32 GiB of key bytes");
}

}  // namespace

const char* KeyKindName(KeyKind kind) { return kind == KeyKind::kString ? "string" : "int64"; }

Result<std::shared_ptr<const VocabFile>> VocabFile::Open(const std::string& path) {
  Result<std::unique_ptr<Container>> container = Container::Open(path);
  if (!container.ok()) return container.status();
  return FromContainer(container.Take());
}

Result<std::shared_ptr<const VocabFile>> VocabFile::FromContainer(std::unique_ptr<Container> container) {
  const std::string& path = container->path();
  if (container->kind() != FileKind::kVocab) return WrongKind(path, container->kind(), FileKind::kVocab);
  const Metadata& metadata = container->metadata();
  const Status damaged = Status::Corrupt("'" + path + "': the metadata does not describe a vocabulary");
  const auto name = metadata.find("name");
  const auto keys = metadata.find("keys");
  uint64_t slots = 0;  // buckets of string keys
  uint64_t order_offset = 0;
  std::shared_ptr<VocabFile> vocab(new VocabFile());
  const bool text = keys != metadata.end() && keys->second == "string";
  if (text && metadata.count("buckets") == 0 && metadata.count("slots") > 0) {
    return OtherFormat(path, "string keys in slots, the earlier format of vocabularies", "buckets");
  }
  if (name == metadata.end() || keys == metadata.end() || !ParseInt(metadata, "size", &vocab->size_) ||
      !ParseInt(metadata, text ? "buckets" : "slots", &slots) || !ParseInt(metadata, "order_offset", &order_offset)) {
    return damaged;
  }
  vocab->name_ = name->second;
  const uint64_t total = container->data_bytes();
  const uint64_t size = static_cast<uint64_t>(vocab->size_);
  if (vocab->size_ < 0 || size > kMaxEntries || slots == 0 || (slots & (slots - 1)) != 0 || slots > 4 * kMaxEntries ||
      (!text && size >= slots) || order_offset % kSectionAlign != 0 || order_offset > total ||
      size * sizeof(uint32_t) > total - order_offset) {
    return damaged;
  }
  vocab->mask_ = slots - 1;
  const uint8_t* data = container->data();
  vocab->order_ = reinterpret_cast<const uint32_t*>(data + order_offset);
  if (text) {
    uint64_t records_offset = 0;
    vocab->key_kind_ = KeyKind::kString;
    if ((slots + 1) * sizeof(uint32_t) > order_offset || !ParseInt(metadata, "records_offset", &records_offset) ||
        !ParseInt(metadata, "records_bytes", &vocab->records_bytes_) || records_offset % kSectionAlign != 0 ||
        records_offset > total || vocab->records_bytes_ > total - records_offset) {
      return damaged;
    }
    vocab->directory_ = reinterpret_cast<const uint32_t*>(data);
    vocab->records_ = data + records_offset;
  } else if (keys->second == "int64") {
    vocab->key_kind_ = KeyKind::kInt64;
    if (slots * sizeof(Int64Slot) > order_offset || !ParseInt(metadata, "empty_key", &vocab->empty_key_)) {
      return damaged;
    }
    vocab->int64_slots_ = reinterpret_cast<const Int64Slot*>(data);
  } else {
    return damaged;
  }
  vocab->container_ = std::move(container);
  return std::shared_ptr<const VocabFile>(std::move(vocab));
}

bool VocabFile::Find(std::string_view key, int64_t* value) const {
  return key_kind_ == KeyKind::kString && FindHashed(VocabHash(key), key, value);
}

bool VocabFile::Find(int64_t key, int64_t* value) const {
  return key_kind_ == KeyKind::kInt64 && FindHashed(VocabHash(key), key, value);
}

bool VocabFile::EntryAt(int64_t i, std::string_view* key, int64_t* value) const {
  if (key_kind_ != KeyKind::kString || i < 0 || i >= size_) return false;
  RecordHeader header;
  const char* found;
  if (!ReadRecord(order_[i], &header, &found)) return false;
  *key = std::string_view(found, header.length);
  *value = header.value;
  return true;
}

bool VocabFile::EntryAt(int64_t i, int64_t* key, int64_t* value) const {
  if (key_kind_ != KeyKind::kInt64 || i < 0 || i >= size_ || order_[i] > mask_) return false;
  *key = int64_slots_[order_[i]].key;
  *value = int64_slots_[order_[i]].value;
  return true;
}

Result<std::unique_ptr<VocabWriter>> VocabWriter::Create(const std::string& path, const std::string& name,
                                                         KeyKind kind) {
  Result<std::unique_ptr<ContainerWriter>> container = ContainerWriter::Create(path, FileKind::kVocab);
  if (!container.ok()) return container.status();
  std::unique_ptr<VocabWriter> writer(new VocabWriter());
  writer->writer_ = container.Take();
  writer->name_ = name;
  writer->kind_ = kind;
  writer->index_.resize(kMinSlots);
  return writer;
}

uint64_t VocabWriter::EntryHash(uint32_t entry) const {
  return kind_ == KeyKind::kString ? hashes_[entry] : VocabHash(entries_[entry].key);
}

void VocabWriter::Grow() {
  std::vector<uint32_t> bigger(index_.size() * 2);
  const uint64_t mask = bigger.size() - 1;
  const size_t count = kind_ == KeyKind::kString ? order_.size() : entries_.size();
  for (uint32_t entry = 0; entry < count; ++entry) {
    uint64_t at = EntryHash(entry) & mask;
    while (bigger[at] != 0) at = (at + 1) & mask;
    bigger[at] = entry + 1;
  }
  index_.swap(bigger);
}

// Takes a slot for the next entry and returns 0, or returns the number + 1 of the entry that has this key already.
template <typename Same>
uint32_t VocabWriter::Claim(uint64_t hash, const Same& same) {
  const uint32_t next = static_cast<uint32_t>(kind_ == KeyKind::kString ? order_.size() : entries_.size());
  if ((uint64_t{next} + 1) * 2 > index_.size()) Grow();
  const uint64_t mask = index_.size() - 1;
  uint64_t at = hash & mask;
  for (; index_[at] != 0; at = (at + 1) & mask) {
    if (same(index_[at] - 1)) return index_[at];
  }
  index_[at] = next + 1;
  return 0;
}

Status VocabWriter::Add(std::string_view key, int64_t value) {
  if (kind_ != KeyKind::kString) return Status::Invalid("vocabulary '" + name_ + "' has int64 keys");
  if (key.size() > std::numeric_limits<uint32_t>::max() || order_.size() >= kMaxEntries ||
      (records_.size() + VocabFile::kRecordHeaderBytes + key.size()) / 8 >= std::numeric_limits<uint32_t>::max() - 1) {
    return TooLarge(name_);
  }
  const uint64_t hash = VocabHash(key);
  const uint32_t before = Claim(hash, [&](uint32_t entry) {
    if (hashes_[entry] != hash) return false;
    const uint8_t* record = records_.data() + uint64_t{order_[entry]} * 8;
    uint32_t length;
    std::memcpy(&length, record + 8, sizeof(length));
    return length == key.size() && std::memcmp(record + VocabFile::kRecordHeaderBytes, key.data(), length) == 0;
  });
  if (before != 0) {
    return Status::Invalid("vocabulary '" + name_ + "': key " + Quoted(key) + " is given twice (entries " +
                           std::to_string(before - 1) + " and " + std::to_string(order_.size()) + ")");
  }
  hashes_.push_back(hash);
  order_.push_back(static_cast<uint32_t>(records_.size() / 8));
  VocabFile::RecordHeader header;
  header.value = value;
  header.length = static_cast<uint32_t>(key.size());
  header.tag = static_cast<uint32_t>(hash >> 32);
  const size_t at = records_.size();
  records_.resize(AlignUp(at + VocabFile::kRecordHeaderBytes + key.size(), 8));
  std::memcpy(records_.data() + at, &header, VocabFile::kRecordHeaderBytes);
  if (!key.empty()) std::memcpy(records_.data() + at + VocabFile::kRecordHeaderBytes, key.data(), key.size());
  return Status::Ok();
}

Status VocabWriter::Add(int64_t key, int64_t value) {
  if (kind_ != KeyKind::kInt64) return Status::Invalid("vocabulary '" + name_ + "' has string keys");
  if (entries_.size() >= kMaxEntries) return Status::Invalid("vocabulary '" + name_ + "' has more than 2^31 keys");
  const uint32_t before = Claim(VocabHash(key), [&](uint32_t entry) { return entries_[entry].key == key; });
  if (before != 0) {
    return Status::Invalid("vocabulary '" + name_ + "': key " + std::to_string(key) + " is given twice (entries " +
                           std::to_string(before - 1) + " and " + std::to_string(entries_.size()) + ")");
  }
  entries_.push_back({key, value});
  return Status::Ok();
}

uint64_t VocabWriter::RecordBytes(uint32_t entry) const {
  const uint64_t end = entry + 1 < order_.size() ? uint64_t{order_[entry + 1]} * 8 : records_.size();
  return end - uint64_t{order_[entry]} * 8;
}

void VocabWriter::AppendBucketHeader(const uint32_t* entries, uint32_t count, uint32_t begin,
                                     const std::vector<uint32_t>& placed, std::vector<uint8_t>* out) const {
  uint8_t header[VocabFile::kBucketHeaderBytes] = {};
  uint8_t* offsets = header + VocabFile::kBucketSlots;
  if (count > VocabFile::kBucketSlots || placed[entries[count - 1]] - begin >= VocabFile::kWalk) {
    offsets[0] = VocabFile::kWalk;
  } else {
    for (uint32_t k = 0; k < count; ++k) {
      header[k] = static_cast<uint8_t>(VocabFile::BucketTag(hashes_[entries[k]]));
      offsets[k] = static_cast<uint8_t>(placed[entries[k]] - begin);
    }
  }
  out->insert(out->end(), header, header + sizeof(header));
}

Status VocabWriter::FinishStrings(Metadata* metadata) {
  const uint32_t count = static_cast<uint32_t>(order_.size());
  uint64_t buckets = 1;
  while (buckets * kBucketRecords < count) buckets *= 2;
  // Entries by bucket, in the order of writing within one.
  std::vector<uint32_t> starts(buckets + 1);
  for (const uint64_t hash : hashes_) ++starts[(hash & (buckets - 1)) + 1];
  for (uint64_t b = 0; b < buckets; ++b) starts[b + 1] += starts[b];
  std::vector<uint32_t> sorted(count);
  std::vector<uint32_t> next(starts.begin(), starts.end() - 1);
  for (uint32_t entry = 0; entry < count; ++entry) sorted[next[hashes_[entry] & (buckets - 1)]++] = entry;
  std::vector<uint32_t> directory(buckets + 1);
  std::vector<uint32_t> placed(count);
  uint64_t bytes = 0;
  for (uint64_t b = 0; b < buckets; ++b) {
    directory[b] = static_cast<uint32_t>(bytes / 8);
    if (starts[b] < starts[b + 1]) bytes += VocabFile::kBucketHeaderBytes;
    for (uint32_t k = starts[b]; k < starts[b + 1]; ++k) {
      placed[sorted[k]] = static_cast<uint32_t>(bytes / 8);
      bytes += RecordBytes(sorted[k]);
    }
  }
  if (bytes / 8 > std::numeric_limits<uint32_t>::max()) return TooLarge(name_);
  directory[buckets] = static_cast<uint32_t>(bytes / 8);
  TFCTR_RETURN_IF_ERROR(AppendPadded(writer_.get(), directory.data(), directory.size() * sizeof(uint32_t)));
  (*metadata)["size"] = std::to_string(count);
  (*metadata)["buckets"] = std::to_string(buckets);
  (*metadata)["order_offset"] = std::to_string(writer_->bytes_written());
  TFCTR_RETURN_IF_ERROR(AppendPadded(writer_.get(), placed.data(), placed.size() * sizeof(uint32_t)));
  (*metadata)["records_offset"] = std::to_string(writer_->bytes_written());
  (*metadata)["records_bytes"] = std::to_string(bytes);
  std::vector<uint8_t> block;
  for (uint64_t b = 0; b < buckets; ++b) {
    if (starts[b] == starts[b + 1]) continue;
    AppendBucketHeader(sorted.data() + starts[b], starts[b + 1] - starts[b], directory[b], placed, &block);
    for (uint32_t k = starts[b]; k < starts[b + 1]; ++k) {
      const uint8_t* record = records_.data() + uint64_t{order_[sorted[k]]} * 8;
      block.insert(block.end(), record, record + RecordBytes(sorted[k]));
    }
    if (block.size() < kWriteBlock) continue;
    TFCTR_RETURN_IF_ERROR(writer_->Append(block.data(), block.size()));
    block.clear();
  }
  return writer_->Append(block.data(), block.size());
}

Status VocabWriter::FinishInts(Metadata* metadata) {
  // One of the first size + 1 candidates is free.
  int64_t empty_key = std::numeric_limits<int64_t>::min();
  const auto taken = [&](int64_t key) {
    const uint64_t mask = index_.size() - 1;
    for (uint64_t at = VocabHash(key) & mask; index_[at] != 0; at = (at + 1) & mask) {
      if (entries_[index_[at] - 1].key == key) return true;
    }
    return false;
  };
  while (taken(empty_key)) ++empty_key;
  std::vector<VocabFile::Int64Slot> slots(index_.size(), {empty_key, 0});
  std::vector<uint32_t> order(entries_.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    if (index_[i] == 0) continue;
    slots[i] = entries_[index_[i] - 1];
    order[index_[i] - 1] = static_cast<uint32_t>(i);
  }
  TFCTR_RETURN_IF_ERROR(AppendPadded(writer_.get(), slots.data(), slots.size() * sizeof(slots[0])));
  (*metadata)["size"] = std::to_string(entries_.size());
  (*metadata)["slots"] = std::to_string(slots.size());
  (*metadata)["empty_key"] = std::to_string(empty_key);
  (*metadata)["order_offset"] = std::to_string(writer_->bytes_written());
  return writer_->Append(order.data(), order.size() * sizeof(uint32_t));
}

Status VocabWriter::Finish() {
  Metadata metadata = {{"kind", "vocab"}, {"name", name_}, {"keys", KeyKindName(kind_)}};
  TFCTR_RETURN_IF_ERROR(kind_ == KeyKind::kString ? FinishStrings(&metadata) : FinishInts(&metadata));
  return writer_->Finish(metadata);
}

}  // namespace tfctr
