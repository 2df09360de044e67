// The index of an overlay: key -> row of its slab, or removed. It is asked before the table it lies over, so it must
// cost nearly nothing for keys that it does not hold: one bit of a bitmap says that a key's hash is not there. Only
// where the bit is set is the small hash asked, an array of {key, row} with linear probing.
//
// Thread-safety: immutable; any number of threads. Cost: 16 to 32 bits of bitmap per key, so that 1 % of a table of 10M
// rows is 200 to 400 KB and stays in a core's cache; 1 key in 16 to 32 that is not there asks the hash in vain.
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

// `static inline` all through: compiled into files of several instruction sets.
struct OverlayIndex {
  static constexpr size_t kBlock = 256;  // keys that are tested together

  const uint64_t* bitmap = nullptr;
  uint32_t bitmap_shift = 63;  // 64 - log2 of its bits
  const OverlaySlot* slots = nullptr;
  uint64_t homes = 1;
  uint64_t slot_count = 0;  // homes and the tail behind them
  uint64_t salt = 0;
  int64_t rows = 0;       // of the slab
  int64_t first_row = 0;  // number of slab row 0
  int64_t missing = 0;    // number of a removed key; of a static table, whose rows are never removed, not used
  bool has_removed = false;

  bool MayHold(uint64_t hash) const {
    const uint64_t bit = hash >> bitmap_shift;
    return ((bitmap[bit >> 6] >> (bit & 63)) & 1) != 0;
  }
  uint64_t HashOf(int64_t key) const { return HashOfKey(key, salt); }
  const OverlaySlot* Home(uint64_t hash) const { return slots + HomeOfHash(hash, homes); }

  // From the key's home on: its number, or `otherwise` where the overlay does not hold it.
  __attribute__((always_inline)) int64_t FindFrom(const OverlaySlot* slot, int64_t key, int64_t otherwise) const {
    for (const OverlaySlot* const end = slots + slot_count; slot != end; ++slot) {
      const int64_t row = slot->row;
      if (row == OverlaySlot::kEmpty) return otherwise;
      if (slot->key != key) continue;
      if (row >= 0 && row < rows) return first_row + row;
      return has_removed ? missing : otherwise;
    }
    return otherwise;
  }

  // One key. For a batch use Redirect, which overlaps the misses.
  __attribute__((always_inline)) int64_t Find(int64_t key, int64_t otherwise) const {
    const uint64_t hash = HashOf(key);
    return MayHold(hash) ? FindFrom(Home(hash), key, otherwise) : otherwise;
  }

  // held[0..return) = places in keys[0..n), n <= kBlock, whose key may be held; their slots are being fetched.
  __attribute__((always_inline)) size_t Candidates(const int64_t* keys, size_t n, uint16_t* held) const {
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
      held[count] = static_cast<uint16_t>(i);
      count += MayHold(HashOf(keys[i])) ? 1 : 0;
    }
    for (size_t c = 0; c < count; ++c) __builtin_prefetch(Home(HashOf(keys[held[c]])));
    return count;
  }

  // Puts the numbers of held keys in place of what numbers[i] has for keys[i]; `numbers` is not `keys`.
  __attribute__((always_inline)) void Redirect(const int64_t* keys, size_t n, int64_t* numbers) const {
    uint16_t held[kBlock];
    for (; n > 0;) {
      const size_t block = n < kBlock ? n : kBlock;
      const size_t count = Candidates(keys, block, held);
      for (size_t c = 0; c < count; ++c) {
        const size_t i = held[c];
        numbers[i] = FindFrom(Home(HashOf(keys[i])), keys[i], numbers[i]);
      }
      keys += block;
      numbers += block;
      n -= block;
    }
  }

  // ids[i] becomes the number of ids[i] where the overlay holds it: the row ids of a static table.
  __attribute__((always_inline)) void RedirectIds(int64_t* ids, size_t n) const {
    uint16_t held[kBlock];
    for (; n > 0;) {
      const size_t block = n < kBlock ? n : kBlock;
      const size_t count = Candidates(ids, block, held);
      for (size_t c = 0; c < count; ++c) {
        const int64_t id = ids[held[c]];
        ids[held[c]] = FindFrom(Home(HashOf(id)), id, id);
      }
      ids += block;
      n -= block;
    }
  }
};

// numbers[i] = row number of keys[i] in the base with its overlay. `numbers` may be `keys`.
static inline __attribute__((always_inline)) void FindThrough(const OverlayIndex& overlay, const HashIndex& base,
                                                              const int64_t* keys, size_t n, int64_t* numbers) {
  uint16_t held[OverlayIndex::kBlock];
  int64_t held_keys[OverlayIndex::kBlock];
  for (; n > 0;) {
    const size_t block = n < OverlayIndex::kBlock ? n : OverlayIndex::kBlock;
    const size_t count = overlay.Candidates(keys, block, held);
    for (size_t c = 0; c < count; ++c) held_keys[c] = keys[held[c]];
    base.Find(keys, block, numbers);
    for (size_t c = 0; c < count; ++c) {
      const int64_t key = held_keys[c];
      numbers[held[c]] = overlay.FindFrom(overlay.Home(overlay.HashOf(key)), key, numbers[held[c]]);
    }
    keys += block;
    numbers += block;
    n -= block;
  }
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_OVERLAY_INDEX_H_
