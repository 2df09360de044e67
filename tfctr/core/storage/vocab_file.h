// Vocabulary file: a static map from string or int64 keys to int64 values, on disk as a hash index that is used where
// it lies (mapped read-only): opening builds nothing and takes no anonymous memory.
//
// String keys lie in buckets: a directory says where each bucket's records start, and the records of a bucket follow
// one another. The directory is small (about 2 bytes a key) and stays in the cache, so a key costs one cache miss.
// int64 keys lie in the slots of an open-addressing index: one miss too. FindEach hides them: it keeps a few dozen keys
// in flight, each in one of three stages (hash, where the bucket starts, compare), and prefetches for the next stage.
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
inline uint64_t Load32(const char* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline constexpr uint64_t kMul0 = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio
inline constexpr uint64_t kMul1 = 0xc2b2ae3d27d4eb4full;
inline constexpr uint64_t kMul2 = 0x165667b19e3779f9ull;
inline constexpr uint64_t kEveryByte = 0x0101010101010101ull;

}  // namespace vocab_internal

class TFCTR_EXPORT VocabFile {
 public:
  // A bucket: 8 tags of one byte, 8 offsets of one byte (from the bucket's start, in units of 8 bytes; 0: none),
  // records. The first offset is kWalk where 8 bytes do not do (more records, or far ones): the records are then gone
  // through.
  static constexpr size_t kBucketHeaderBytes = 16;
  static constexpr uint64_t kBucketSlots = 8;
  static constexpr uint64_t kWalk = 255;
  static uint64_t BucketTag(uint64_t hash) { return hash >> 56; }
  struct Int64Slot {
    int64_t key;  // empty_key(): empty slot
    int64_t value;
  };
  struct RecordHeader {  // followed by `length` bytes of key, padded with zeros to a multiple of 8
    int64_t value;
    uint32_t length;
    uint32_t tag;  // high half of the hash
  };
  static constexpr size_t kRecordHeaderBytes = 16;

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
  // order. key(i) is called more than once and must be cheap; a few more keys are asked for before the i-th comes back.
  template <typename GetKey, typename OnHit, typename OnMiss>
  void FindEach(int64_t n, GetKey&& key, OnHit&& hit, OnMiss&& miss) const;

  // The i-th entry in the order in which it was written. Key bytes point into the mapping. False when i is outside
  // 0..size-1 or the file is of the other kind (or damaged).
  bool EntryAt(int64_t i, std::string_view* key, int64_t* value) const;
  bool EntryAt(int64_t i, int64_t* key, int64_t* value) const;

 private:
  static constexpr int64_t kLag = 12;   // keys between two stages: the prefetches of a stage have that long to arrive
  static constexpr int64_t kRing = 32;  // power of two above 2 * kLag
  static constexpr uint64_t kLine = 64;
  static constexpr uint64_t kByte = 255;
  static constexpr uint64_t kUnit = 8;  // records start at multiples of it; the directory counts in it

  VocabFile() = default;
  bool ReadRecord(uint64_t record, RecordHeader* header, const char** key) const {
    const uint64_t at = record * kUnit;
    if (at + kRecordHeaderBytes > records_bytes_) return false;
    std::memcpy(header, records_ + at, kRecordHeaderBytes);
    if (header->length > records_bytes_ - at - kRecordHeaderBytes) return false;
    *key = reinterpret_cast<const char*>(records_ + at + kRecordHeaderBytes);
    return true;
  }
  bool FindHashed(uint64_t hash, std::string_view key, int64_t* value) const {
    const uint64_t bucket = hash & mask_;
    return FindInBucket(directory_[bucket], directory_[bucket + 1], hash, key, value);
  }
  // No branch depends on which record of the bucket it is: mispredicted ones would cost more than everything else.
  bool FindInBucket(uint64_t begin, uint64_t end, uint64_t hash, std::string_view key, int64_t* value) const {
    using namespace vocab_internal;  // NOLINT: constants and helpers of this function only
    if (begin >= end || begin * kUnit + kBucketHeaderBytes > records_bytes_) return false;
    const char* bucket = reinterpret_cast<const char*>(records_ + begin * kUnit);
    const uint64_t tags = Load64(bucket);
    const uint64_t offsets = Load64(bucket + 8);
    if ((offsets & kByte) == kWalk) return FindWalking(begin, end, hash, key, value);
    const uint64_t different = tags ^ (BucketTag(hash) * kEveryByte);
    uint64_t same = (different - kEveryByte) & ~different & (kEveryByte << 7);  // and perhaps bytes above one that is
    for (; same != 0; same &= same - 1) {
      const uint64_t offset = (offsets >> (__builtin_ctzll(same) & ~7)) & kByte;
      RecordHeader header;
      const char* found;
      if (offset != 0 && ReadRecord(begin + offset, &header, &found) && Matches(header, found, hash, key)) {
        *value = header.value;
        return true;
      }
    }
    return false;
  }
  bool FindWalking(uint64_t begin, uint64_t end, uint64_t hash, std::string_view key, int64_t* value) const {
    RecordHeader header;
    const char* found;
    for (uint64_t record = begin + kBucketHeaderBytes / kUnit; record < end;) {
      if (!ReadRecord(record, &header, &found)) return false;
      if (Matches(header, found, hash, key)) {
        *value = header.value;
        return true;
      }
      record += (kRecordHeaderBytes + uint64_t{header.length} + kUnit - 1) / kUnit;
    }
    return false;
  }
  static bool Matches(const RecordHeader& header, const char* found, uint64_t hash, std::string_view key) {
    return header.tag == static_cast<uint32_t>(hash >> 32) && header.length == key.size() && SameBytes(found, key);
  }
  // Keys of a feature are short: two loads instead of a call where that is enough.
  static bool SameBytes(const char* found, std::string_view key) {
    using vocab_internal::Load64;
    const size_t n = key.size();
    if (n - 8 <= 8) {
      return ((Load64(found) ^ Load64(key.data())) | (Load64(found + n - 8) ^ Load64(key.data() + n - 8))) == 0;
    }
    return std::memcmp(found, key.data(), n) == 0;
  }
  bool FindHashed(uint64_t hash, int64_t key, int64_t* value) const {
    if (key == empty_key_) return false;
    uint64_t at = hash & mask_;
    for (uint64_t probes = 0; probes <= mask_; ++probes, at = (at + 1) & mask_) {
      const Int64Slot& slot = int64_slots_[at];
      if (slot.key == key) {
        *value = slot.value;
        return true;
      }
      if (slot.key == empty_key_) return false;
    }
    return false;
  }
  // Two lines at most, one where that is all. Beyond the mapping it does nothing.
  void PrefetchBucket(uint64_t begin, uint64_t end) const {
    const uint64_t at = reinterpret_cast<uint64_t>(records_) + begin * kUnit;
    const uint64_t last = reinterpret_cast<uint64_t>(records_) + end * kUnit - kUnit;
    __builtin_prefetch(reinterpret_cast<const void*>(at));
    __builtin_prefetch(reinterpret_cast<const void*>(std::min(at + kLine, last)));
  }
  bool Holds(std::string_view) const { return key_kind_ == KeyKind::kString; }
  bool Holds(int64_t) const { return key_kind_ == KeyKind::kInt64; }

  std::unique_ptr<Container> container_;
  std::string name_;
  KeyKind key_kind_ = KeyKind::kString;
  int64_t size_ = 0;
  uint64_t mask_ = 0;      // number of buckets or slots, - 1
  int64_t empty_key_ = 0;  // int64 keys: a key that is not in the vocabulary marks an empty slot
  const Int64Slot* int64_slots_ = nullptr;
  const uint32_t* directory_ = nullptr;  // string keys: where each bucket starts, and the end
  const uint8_t* records_ = nullptr;
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
  uint64_t RecordBytes(uint32_t entry) const;
  void AppendBucketHeader(const uint32_t* entries, uint32_t count, uint32_t begin, const std::vector<uint32_t>& placed,
                          std::vector<uint8_t>* out) const;
  Status FinishInts(Metadata* metadata);
  std::unique_ptr<ContainerWriter> writer_;
  std::string name_;
  KeyKind kind_ = KeyKind::kString;
  std::vector<uint8_t> records_;               // string keys: the records in the order of writing
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

inline uint64_t VocabHash(std::string_view key) {
  using namespace vocab_internal;  // NOLINT: constants and helpers of this function only
  const char* p = key.data();
  size_t n = key.size();
  uint64_t h = kMul2 ^ (n * kMul0);
  while (n > 16) {
    h = Fold(Load64(p) ^ kMul0, Load64(p + 8) ^ h ^ kMul1);
    p += 16;
    n -= 16;
  }
  uint64_t a = 0;
  uint64_t b = 0;
  if (n >= 8) {
    a = Load64(p);
    b = Load64(p + n - 8);
  } else if (n >= 4) {
    a = Load32(p);
    b = Load32(p + n - 4);
  } else {
    for (size_t i = 0; i < n; ++i) a = a << 8 | static_cast<unsigned char>(p[i]);
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
  constexpr bool kText = std::is_same_v<Key, std::string_view>;
  constexpr int64_t kMask = kRing - 1;
  uint64_t hashes[kRing];
  uint32_t begins[kRing];
  uint32_t ends[kRing];
  const int64_t turns = n + (kText ? 2 : 1) * kLag;
  for (int64_t turn = 0; turn < turns; ++turn) {
    if (turn < n) {
      const uint64_t hash = VocabHash(key(turn));
      hashes[turn & kMask] = hash;
      if constexpr (kText) {
        __builtin_prefetch(directory_ + (hash & mask_));
      } else {
        __builtin_prefetch(int64_slots_ + (hash & mask_));
      }
    }
    int64_t i = turn - kLag;
    if constexpr (kText) {
      if (i >= 0 && i < n) {
        const uint64_t bucket = hashes[i & kMask] & mask_;
        begins[i & kMask] = directory_[bucket];
        ends[i & kMask] = directory_[bucket + 1];
        PrefetchBucket(begins[i & kMask], ends[i & kMask]);
      }
      i -= kLag;
    }
    if (i < 0) continue;
    const Key k = key(i);
    const uint64_t hash = hashes[i & kMask];
    int64_t value = 0;
    bool found;
    if constexpr (kText) {
      found = FindInBucket(begins[i & kMask], ends[i & kMask], hash, k, &value);
    } else {
      found = FindHashed(hash, k, &value);
    }
    if (found) {
      hit(i, value);
    } else {
      miss(i, k);
    }
  }
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_VOCAB_FILE_H_
