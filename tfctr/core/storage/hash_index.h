// The index of a shard: open addressing with linear probing over entries {key, row}, read without a lock.
//
// An entry is empty (row null), live, pending (row | 1: its row is being initialised) or erased (kErased). Any key is
// legal: emptiness is told by the row alone. The home of a key is its hash scaled to the capacity, so keys lie in the
// order of their hashes at *any* capacity, and an array is rebuilt into a larger one by two streams. Probing never
// wraps: behind the homes lies a tail whose last entry stays empty.
//
// Thread-safety: FindEntry by any thread; writers are serialised by the shard's mutex. Key and row of an entry are
// atomics; a writer stores the key before the row. An erased entry may get another key at once: a reader that has
// matched the key looks at the row again, and a row's address is not used again while a reader that saw it is there.
// Cost: 16 bytes an entry.
#ifndef TFCTR_CORE_STORAGE_HASH_INDEX_H_
#define TFCTR_CORE_STORAGE_HASH_INDEX_H_

#include <cstddef>
#include <cstdint>

namespace tfctr {

struct IndexEntry {
  int64_t key;
  uintptr_t row;

  int64_t Key() const { return __atomic_load_n(&key, __ATOMIC_ACQUIRE); }
  uintptr_t Row() const { return __atomic_load_n(&row, __ATOMIC_ACQUIRE); }
  void SetKey(int64_t to) { __atomic_store_n(&key, to, __ATOMIC_RELEASE); }
  void SetRow(uintptr_t to) { __atomic_store_n(&row, to, __ATOMIC_RELEASE); }
};

inline constexpr uintptr_t kPending = 1;
inline constexpr uintptr_t kErased = 2;

inline bool IsLive(uintptr_t row) { return row != 0 && (row & (kPending | kErased)) == 0; }
inline float* RowOf(uintptr_t row) { return reinterpret_cast<float*>(row & ~kPending); }

// Lies in front of its entries, in one piece of memory.
struct alignas(64) IndexArray {
  size_t capacity;  // homes
  size_t entries;   // homes and tail
  size_t bytes;     // of memory

  IndexEntry* begin() { return reinterpret_cast<IndexEntry*>(this + 1); }
  const IndexEntry* begin() const { return reinterpret_cast<const IndexEntry*>(this + 1); }
  const IndexEntry* end() const { return begin() + entries; }
  IndexEntry* end() { return begin() + entries; }

  // `place` is the fraction [0, 2^64) of the shard's hash range at which a key lies.
  size_t Home(uint64_t place) const {
    return static_cast<size_t>((static_cast<unsigned __int128>(place) * capacity) >> 64);
  }

  // Of an array with so many homes; made by IndexMemory.
  static size_t Entries(size_t capacity);
  static size_t Bytes(size_t capacity);
};

// Where a key lies: its shard, and its place in the shard's hash range.
struct KeyPlace {
  size_t shard;
  uint64_t place;
};

inline KeyPlace PlaceOf(int64_t key, uint64_t salt, size_t shards) {
  uint64_t x = static_cast<uint64_t>(key) ^ salt;
  x *= 0x9e3779b97f4a7c15ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 29;
  const unsigned __int128 scaled = static_cast<unsigned __int128>(x) * shards;
  return KeyPlace{static_cast<size_t>(scaled >> 64), static_cast<uint64_t>(scaled)};
}

// The live row of a key from its home on, or null.
inline float* FindRow(const IndexEntry* at, int64_t key) {
  for (;; ++at) {
    const uintptr_t row = at->Row();
    if (row == 0) return nullptr;
    if (at->Key() == key) {
      if (IsLive(row) && at->Row() == row) return reinterpret_cast<float*>(row);
      // Pending, erased, or it changed under our eyes: whoever inserts the key again may do so further on.
    }
  }
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_HASH_INDEX_H_
