// The index of a hash file: key -> row number, used where it lies in the mapped file.
//
// A line is one cache line: 7 keys, the number of its first row, how many keys it has. Rows lie in the order of the
// lines, so a key's row number is the line's first number plus the key's place in it, and no row number is stored. The
// home line of a key is its salted hash scaled to the number of homes; a full line's keys go on into the next ones.
// Which ones may have gone on is told by 16 bits of the line, so that a key that is not there is almost never looked
// for further on. Behind the homes lie a few lines for what runs over the end. Every int64 is a legal key: emptiness is
// the count.
//
// Thread-safety: immutable; any number of threads. Cost: Find takes one cache miss a key, which a batch overlaps; no
// allocation. Whatever bits the lines hold, a search stays inside them and a number is in [0, missing].
#ifndef TFCTR_CORE_STORAGE_HASH_LINES_H_
#define TFCTR_CORE_STORAGE_HASH_LINES_H_

#include <cstddef>
#include <cstdint>

namespace tfctr {

struct alignas(64) HashLine {
  static constexpr int kKeys = 7;
  static constexpr uint64_t kMaxWalk = 16;  // no key lies further from its home

  int64_t keys[kKeys];  // those from `count` on are 0
  uint32_t first;       // row number of keys[0]
  uint16_t count;
  uint16_t overflow;  // OverflowBit of every key whose home is here or before and that lies further on
};
static_assert(sizeof(HashLine) == 64, "a line is a cache line");

// Bijective: different keys have different hashes.
static inline uint64_t HashOfKey(int64_t key, uint64_t salt) {
  uint64_t x = static_cast<uint64_t>(key) ^ salt;
  x *= 0x9e3779b97f4a7c15ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x ^ (x >> 29);
}

static inline uint64_t HomeOfHash(uint64_t hash, uint64_t homes) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * homes) >> 64);
}

static inline uint16_t OverflowBit(uint64_t hash) { return static_cast<uint16_t>(1u << (hash & 15)); }

// `static inline` all through: compiled into files of several instruction sets.
struct HashIndex {
  static constexpr size_t kAhead = 32;  // lines in flight

  const HashLine* lines = nullptr;
  uint64_t homes = 1;
  uint64_t line_count = 0;  // at least homes
  uint64_t salt = 0;
  int64_t missing = 0;  // the number of the default row: of a key that is not there

  const HashLine* Home(int64_t key) const { return lines + HomeOfHash(HashOfKey(key, salt), homes); }

  // The key's row number where it lies in this line, else -1.
  __attribute__((always_inline)) int64_t FindIn(const HashLine* line, int64_t key) const {
    unsigned match = 0;
    for (int k = 0; k < HashLine::kKeys; ++k) match |= static_cast<unsigned>(line->keys[k] == key) << k;
    match &= (1u << (line->count & 7)) - 1;
    if (match == 0) return -1;
    const int64_t number = int64_t{line->first} + __builtin_ctz(match);
    return number < missing ? number : missing;
  }

  // From the key's home line on.
  __attribute__((always_inline)) int64_t FindFrom(const HashLine* line, int64_t key) const {
    const int64_t number = FindIn(line, key);
    if (number >= 0) return number;
    return line->overflow == 0 ? missing : FindBehind(line, key);
  }

  int64_t FindBehind(const HashLine* line, int64_t key) const {
    const uint16_t bit = OverflowBit(HashOfKey(key, salt));
    const HashLine* const end = lines + line_count;
    for (uint64_t walked = 0; walked < HashLine::kMaxWalk && (line->overflow & bit) != 0 && ++line != end; ++walked) {
      const int64_t number = FindIn(line, key);
      if (number >= 0) return number;
    }
    return missing;
  }

  // numbers[i] = row number of keys[i], or `missing`. `numbers` may be `keys`.
  __attribute__((always_inline)) void Find(const int64_t* keys, size_t n, int64_t* numbers) const {
    const HashLine* ahead[kAhead];
    const size_t start = n < kAhead ? n : kAhead;
    for (size_t i = 0; i < start; ++i) {
      ahead[i] = Home(keys[i]);
      __builtin_prefetch(ahead[i]);
    }
    for (size_t i = 0; i < n; ++i) {
      const HashLine* line = ahead[i % kAhead];
      const int64_t key = keys[i];
      if (i + kAhead < n) {
        const HashLine* next = Home(keys[i + kAhead]);
        __builtin_prefetch(next);
        ahead[i % kAhead] = next;
      }
      numbers[i] = FindFrom(line, key);
    }
  }
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_HASH_LINES_H_
