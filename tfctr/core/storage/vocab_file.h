// Vocabulary file: a static map from string or int64 keys to int64 values, on disk as an open-addressing hash index
// that is used where it lies (mapped read-only): opening builds nothing and takes no anonymous memory.
//
// A string key costs two cache misses (slot, record), an int64 key one. FindBatch hides them: it hashes a block of
// keys, prefetches their slots, then their records, and only then compares.
//
// Thread-safety: VocabFile is immutable and may be read by any number of threads; a VocabWriter belongs to one.
// Reads stay inside the mapping even when the payload's bytes are damaged: a damaged key is then not found.
#ifndef TFCTR_CORE_STORAGE_VOCAB_FILE_H_
#define TFCTR_CORE_STORAGE_VOCAB_FILE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/file_format.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

enum class KeyKind { kString, kInt64 };
TFCTR_EXPORT const char* KeyKindName(KeyKind kind);  // "string", "int64"

// 64-bit hashes of the index; part of the file format (format version 1).
uint64_t VocabHash(std::string_view key);
uint64_t VocabHash(int64_t key);

class TFCTR_EXPORT VocabFile {
 public:
  struct StringSlot {
    uint32_t tag;     // high half of the hash
    uint32_t record;  // offset of the record in the record section in units of 8 bytes; 0: empty slot
  };
  struct Int64Slot {
    int64_t key;  // empty_key(): empty slot
    int64_t value;
  };
  struct RecordHeader {  // followed by `length` bytes of key
    int64_t value;
    uint32_t length;
  };
  static constexpr size_t kRecordHeaderBytes = 12;

  // Checks footer, sizes and metadata, not the payload. kNotFound, kCorrupt, kInvalid (another kind of file) or kIo.
  static Result<std::shared_ptr<const VocabFile>> Open(const std::string& path);
  static Result<std::shared_ptr<const VocabFile>> FromContainer(std::unique_ptr<Container> container);

  int64_t size() const { return size_; }
  KeyKind key_kind() const { return key_kind_; }
  const std::string& name() const { return name_; }
  const std::string& path() const { return container_->path(); }
  uint64_t bytes() const { return container_->data_bytes(); }
  const std::string& fingerprint() const { return container_->fingerprint(); }
  const Container& container() const { return *container_; }
  Status VerifyChecksums() const { return container_->VerifyChecksums(); }
  void Prefault() const { container_->Prefault(); }

  // True and *value when the key is there. A key of the other kind is never there.
  bool Find(std::string_view key, int64_t* value) const;
  bool Find(int64_t key, int64_t* value) const;

  // values[i] = value of keys[i], or default_value.
  void FindBatch(const std::string_view* keys, int64_t n, int64_t default_value, int64_t* values) const {
    FindEach(
        n, [keys](int64_t i) { return keys[i]; }, [values](int64_t i, int64_t v) { values[i] = v; },
        [values, default_value](int64_t i, std::string_view) { values[i] = default_value; });
  }
  void FindBatch(const int64_t* keys, int64_t n, int64_t default_value, int64_t* values) const {
    FindEach(
        n, [keys](int64_t i) { return keys[i]; }, [values](int64_t i, int64_t v) { values[i] = v; },
        [values, default_value](int64_t i, int64_t) { values[i] = default_value; });
  }

  // Batched find with prefetch for any source and sink: key(i) gives a std::string_view or int64_t (the kind of this
  // file; the other kind misses everywhere), hit(i, value) or miss(i, key) is called once for every i in 0..n-1, in
  // order. key(i) is called more than once and must be cheap.
  template <typename GetKey, typename OnHit, typename OnMiss>
  void FindEach(int64_t n, GetKey&& key, OnHit&& hit, OnMiss&& miss) const;

  // The i-th entry in the order in which it was written. Key bytes point into the mapping. False when i is outside
  // 0..size-1 or the file is of the other kind (or damaged).
  bool EntryAt(int64_t i, std::string_view* key, int64_t* value) const;
  bool EntryAt(int64_t i, int64_t* key, int64_t* value) const;

 private:
  static constexpr int64_t kBlock = 32;  // keys in flight: enough to fill the line fill buffers, state fits in L1

  VocabFile() = default;
  bool ReadRecord(uint32_t record, std::string_view* key, int64_t* value) const {
    const uint64_t at = uint64_t{record} * 8;
    if (at + kRecordHeaderBytes > records_bytes_) return false;
    uint32_t length;
    std::memcpy(&length, records_ + at + 8, sizeof(length));
    if (length > records_bytes_ - at - kRecordHeaderBytes) return false;
    std::memcpy(value, records_ + at, sizeof(*value));
    *key = std::string_view(reinterpret_cast<const char*>(records_ + at + kRecordHeaderBytes), length);
    return true;
  }
  bool FindHashed(uint64_t hash, std::string_view key, int64_t* value) const {
    const uint32_t tag = static_cast<uint32_t>(hash >> 32);
    uint64_t at = hash & slot_mask_;
    for (uint64_t probes = 0; probes <= slot_mask_; ++probes, at = (at + 1) & slot_mask_) {
      const StringSlot& slot = string_slots_[at];
      if (slot.record == 0) return false;
      if (slot.tag != tag) continue;
      std::string_view found;
      if (ReadRecord(slot.record, &found, value) && found == key) return true;
    }
    return false;
  }
  bool FindHashed(uint64_t hash, int64_t key, int64_t* value) const {
    if (key == empty_key_) return false;
    uint64_t at = hash & slot_mask_;
    for (uint64_t probes = 0; probes <= slot_mask_; ++probes, at = (at + 1) & slot_mask_) {
      const Int64Slot& slot = int64_slots_[at];
      if (slot.key == key) {
        *value = slot.value;
        return true;
      }
      if (slot.key == empty_key_) return false;
    }
    return false;
  }
  void PrefetchSlot(uint64_t hash, std::string_view) const { __builtin_prefetch(string_slots_ + (hash & slot_mask_)); }
  void PrefetchSlot(uint64_t hash, int64_t) const { __builtin_prefetch(int64_slots_ + (hash & slot_mask_)); }
  void PrefetchRecord(uint64_t hash, std::string_view) const {
    // The first occupied slot of this tag; a wrong guess only costs the prefetch.
    const StringSlot& slot = string_slots_[hash & slot_mask_];
    const uint64_t at = uint64_t{slot.record} * 8;
    if (slot.record != 0 && at < records_bytes_) __builtin_prefetch(records_ + at);
  }
  void PrefetchRecord(uint64_t, int64_t) const {}
  bool Holds(std::string_view) const { return key_kind_ == KeyKind::kString; }
  bool Holds(int64_t) const { return key_kind_ == KeyKind::kInt64; }

  std::unique_ptr<Container> container_;
  std::string name_;
  KeyKind key_kind_ = KeyKind::kString;
  int64_t size_ = 0;
  uint64_t slot_mask_ = 0;  // slots - 1
  int64_t empty_key_ = 0;   // int64 keys: a key that is not in the vocabulary marks an empty slot
  const StringSlot* string_slots_ = nullptr;
  const Int64Slot* int64_slots_ = nullptr;
  const uint8_t* records_ = nullptr;  // string keys
  uint64_t records_bytes_ = 0;
  const uint32_t* order_ = nullptr;  // entry -> record (string keys) or slot (int64 keys)
};

class TFCTR_EXPORT VocabWriter {
 public:
  // Collects in memory, writes at Finish: under a temporary dot name beside `path`, then renames it.
  static Result<std::unique_ptr<VocabWriter>> Create(const std::string& path, const std::string& name, KeyKind kind);
  // kInvalid naming the key when it was added before, or is of the other kind.
  Status Add(std::string_view key, int64_t value);
  Status Add(int64_t key, int64_t value);
  Status Finish();

 private:
  VocabWriter() = default;
  Status FinishStrings(Metadata* metadata);
  Status FinishInts(Metadata* metadata);
  std::unique_ptr<ContainerWriter> writer_;
  std::string name_;
  KeyKind kind_ = KeyKind::kString;
  std::vector<uint8_t> records_;               // string keys: the record section
  std::vector<uint32_t> order_;                // string keys: entry -> record
  std::vector<uint64_t> hashes_;               // string keys
  std::vector<VocabFile::Int64Slot> entries_;  // int64 keys
  std::vector<uint32_t> index_;                // growing open-addressing index of entry + 1, to find duplicates
  template <typename Same>
  uint32_t Claim(uint64_t hash, const Same& same);
  void Grow();
  uint64_t EntryHash(uint32_t entry) const;
};

// ---------------------------------------------------------------------------------------------------------------

namespace vocab_internal {

inline uint64_t Fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
inline uint64_t Load64(const char* p) {
  uint64_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline constexpr uint64_t kMul0 = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio
inline constexpr uint64_t kMul1 = 0xc2b2ae3d27d4eb4full;
inline constexpr uint64_t kMul2 = 0x165667b19e3779f9ull;

}  // namespace vocab_internal

inline uint64_t VocabHash(std::string_view key) {
  using namespace vocab_internal;  // NOLINT: constants and helpers of this function only
  const char* p = key.data();
  size_t n = key.size();
  uint64_t h = kMul2 ^ (n * kMul0);
  while (n >= 16) {
    h = Fold(Load64(p) ^ kMul0, Load64(p + 8) ^ h ^ kMul1);
    p += 16;
    n -= 16;
  }
  uint64_t a = 0;
  uint64_t b = 0;
  if (n >= 8) {
    a = Load64(p);
    b = Load64(p + n - 8);
  } else {
    std::memcpy(&a, p, n);
  }
  h = Fold(a ^ kMul1, b ^ h);
  return Fold(h ^ kMul0, kMul2);
}

inline uint64_t VocabHash(int64_t key) {
  using namespace vocab_internal;  // NOLINT: constants and helpers of this function only
  return Fold(static_cast<uint64_t>(key) ^ kMul0, kMul1) ^ (static_cast<uint64_t>(key) >> 32);
}

template <typename GetKey, typename OnHit, typename OnMiss>
void VocabFile::FindEach(int64_t n, GetKey&& key, OnHit&& hit, OnMiss&& miss) const {
  using Key = std::decay_t<decltype(key(int64_t{0}))>;
  if (!Holds(Key())) {
    for (int64_t i = 0; i < n; ++i) miss(i, key(i));
    return;
  }
  uint64_t hashes[kBlock];
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t count = std::min(kBlock, n - start);
    for (int64_t i = 0; i < count; ++i) {
      const Key k = key(start + i);
      hashes[i] = VocabHash(k);
      PrefetchSlot(hashes[i], k);
    }
    if constexpr (std::is_same_v<Key, std::string_view>) {
      for (int64_t i = 0; i < count; ++i) PrefetchRecord(hashes[i], Key());
    }
    for (int64_t i = 0; i < count; ++i) {
      const Key k = key(start + i);
      int64_t value = 0;
      if (FindHashed(hashes[i], k, &value)) {
        hit(start + i, value);
      } else {
        miss(start + i, k);
      }
    }
  }
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_VOCAB_FILE_H_
