// The index of an overlay: key -> row of its slab, or removed. It is asked before the table it lies over, so it must
// cost nearly nothing for keys that it does not hold: one bit of a bitmap says that a key's hash is not there. Only
// where the bit is set is the small hash asked, an array of {key, row} with linear probing.
//
// Thread-safety: immutable; any number of threads. Cost: 16 to 32 bits of bitmap per key, so that 1 % of a table of 10M
// rows is 200 to 400 KB and stays in a core's cache; about 1 key in 100 that is not there asks the hash in vain.
// Whatever bits the arrays hold, a search stays inside them and its rows are in [0, rows).
#ifndef TFCTR_CORE_STORAGE_OVERLAY_INDEX_H_
#define TFCTR_CORE_STORAGE_OVERLAY_INDEX_H_

#include <cstddef>
#include <cstdint>

#include "tfctr/core/storage/hash_lines.h"

namespace tfctr {

struct OverlaySlot {
  static constexpr int64_t kEmpty = -2;
  static constexpr int64_t kRemoved = -1;

  int64_t key;
  int64_t row;  // of the slab, kRemoved or kEmpty
};
static_assert(sizeof(OverlaySlot) == 16, "four slots are a cache line");

// Row ids of a static table, which nobody can choose to collide for harm: one multiplication.
static inline uint64_t HashOfId(int64_t id, uint64_t salt) {
  return (static_cast<uint64_t>(id) ^ salt) * 0x9e3779b97f4a7c15ull;
}

// `static inline` all through: compiled into files of several instruction sets.
struct OverlayIndex {
  static constexpr size_t kBlock = 256;        // keys that are tested together
  static constexpr uint64_t kSlotsOfHome = 4;  // a cache line

  const uint64_t* bitmap = nullptr;
  uint32_t bits_shift = 51;  // 64 - log2 of its words - 12: what is left are word (high), bit (6), bit (6)
  const OverlaySlot* slots = nullptr;
  uint64_t homes = 1;
  uint64_t slot_count = 0;  // those of the homes and the tail behind them
  uint64_t salt = 0;
  int64_t rows = 0;       // of the slab
  int64_t first_row = 0;  // number of slab row 0
  int64_t missing = 0;    // number of a removed key; of a static table, whose rows are never removed, not used
  bool hashed = false;    // any keys, else row ids

  // 1 where the key of this hash may be held.
  uint64_t MayHold(uint64_t hash) const {
    const uint64_t place = hash >> bits_shift;
    const uint64_t word = bitmap[place >> 12];
    return (word >> ((place >> 6) & 63)) & (word >> (place & 63)) & 1;
  }
  uint64_t HashOf(int64_t key) const { return hashed ? HashOfKey(key, salt) : HashOfId(key, salt); }
  const OverlaySlot* Home(uint64_t hash) const { return slots + kSlotsOfHome * HomeOfHash(hash, homes); }

  // From the key's home on: its number, or `otherwise` where the overlay does not hold it.
  __attribute__((always_inline)) int64_t FindFrom(const OverlaySlot* slot, int64_t key, int64_t otherwise) const {
    for (const OverlaySlot* const end = slots + slot_count; slot != end; ++slot) {
      const int64_t row = slot->row;
      if (row == OverlaySlot::kEmpty) return otherwise;
      if (slot->key != key) continue;
      if (row >= 0 && row < rows) return first_row + row;
      return hashed ? missing : otherwise;
    }
    return otherwise;
  }

  // One key. For a batch use Redirect, which overlaps the misses.
  __attribute__((always_inline)) int64_t Find(int64_t key, int64_t otherwise) const {
    const uint64_t hash = HashOf(key);
    return MayHold(hash) != 0 ? FindFrom(Home(hash), key, otherwise) : otherwise;
  }

  // held[0..return) = places in keys[0..n), n <= kBlock, whose key may be held; their slots are being fetched.
  template <bool kHashed>
  __attribute__((always_inline)) size_t Candidates(const int64_t* keys, size_t n, uint16_t* held) const {
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
      held[count] = static_cast<uint16_t>(i);
      count += MayHold(kHashed ? HashOfKey(keys[i], salt) : HashOfId(keys[i], salt));
    }
    for (size_t c = 0; c < count; ++c) __builtin_prefetch(Home(HashOf(keys[held[c]])));
    return count;
  }

  // Puts the numbers of held keys in place of what numbers[i] has for keys[i]. `numbers` may be `keys`.
  __attribute__((always_inline)) void Redirect(const int64_t* keys, size_t n, int64_t* numbers) const {
    uint16_t held[kBlock];
    for (; n > 0;) {
      const size_t block = n < kBlock ? n : kBlock;
      const size_t count = hashed ? Candidates<true>(keys, block, held) : Candidates<false>(keys, block, held);
      for (size_t c = 0; c < count; ++c) {
        const size_t i = held[c];
        numbers[i] = FindFrom(Home(HashOf(keys[i])), keys[i], numbers[i]);
      }
      keys += block;
      numbers += block;
      n -= block;
    }
  }
};

// One pass over both indices: the overlay's word is tested while the base's line is on its way.
template <bool kOneHash>
static inline __attribute__((always_inline)) void FindThroughBoth(const OverlayIndex& overlay, const HashIndex& base,
                                                                  const int64_t* keys, size_t n, int64_t* numbers) {
  constexpr size_t kAhead = HashIndex::kAhead;
  const HashLine* lines[kAhead];
  const OverlaySlot* slots[kAhead];  // null: the overlay does not hold the key
  const auto fetch = [&](size_t i) {
    const uint64_t hash = HashOfKey(keys[i], base.salt);
    const uint64_t over = kOneHash ? hash : HashOfKey(keys[i], overlay.salt);
    const HashLine* const line = base.lines + HomeOfHash(hash, base.homes);
    __builtin_prefetch(line);
    lines[i % kAhead] = line;
    slots[i % kAhead] = nullptr;
    if (__builtin_expect(overlay.MayHold(over) != 0, 0)) {
      slots[i % kAhead] = overlay.Home(over);
      __builtin_prefetch(slots[i % kAhead]);
    }
  };
  for (size_t i = 0; i < n && i < kAhead; ++i) fetch(i);
  for (size_t i = 0; i < n; ++i) {
    const HashLine* const line = lines[i % kAhead];
    const OverlaySlot* const slot = slots[i % kAhead];
    const int64_t key = keys[i];
    if (i + kAhead < n) fetch(i + kAhead);
    const int64_t held = __builtin_expect(slot != nullptr, 0) ? overlay.FindFrom(slot, key, -1) : -1;
    numbers[i] = held >= 0 ? held : base.FindFrom(line, key);
  }
}

// numbers[i] = row number of keys[i] in a hash file with its overlay. `numbers` may be `keys`.
static inline __attribute__((always_inline)) void FindThrough(const OverlayIndex& overlay, const HashIndex& base,
                                                              const int64_t* keys, size_t n, int64_t* numbers) {
  if (overlay.salt == base.salt) {  // always, but for keys that were built to collide
    FindThroughBoth<true>(overlay, base, keys, n, numbers);
  } else {
    FindThroughBoth<false>(overlay, base, keys, n, numbers);
  }
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_OVERLAY_INDEX_H_
