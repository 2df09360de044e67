// The index of a hash file: key -> row number, used where it lies in the mapped file.
//
// A line is one cache line: 7 keys, the number of its first row, how many keys it has. Rows lie in the order of the
// lines, so a key's row number is the line's first number plus the key's place in it, and no row number is stored:
// about 11.5 bytes a key. The home line of a key is its salted hash scaled to the number of homes; a full line's keys
// go on into the next one, which the line's flag says. Behind the homes lie a few lines for what runs over the end.
// Every int64 is a legal key: emptiness is the count.
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
  static constexpr uint8_t kOverflowed = 1;  // a key whose home is here or before lies further on

  int64_t keys[kKeys];  // those from `count` on are 0
  uint32_t first;       // row number of keys[0]
  uint8_t count;
  uint8_t flags;
  uint16_t zero;
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

// `static inline` all through: compiled into files of several instruction sets.
struct HashIndex {
  static constexpr size_t kAhead = 16;  // lines in flight

  const HashLine* lines = nullptr;
  uint64_t homes = 1;
  uint64_t line_count = 0;  // at least homes
  uint64_t salt = 0;
  int64_t missing = 0;  // the number of the default row: of a key that is not there

  const HashLine* Home(int64_t key) const { return lines + HomeOfHash(HashOfKey(key, salt), homes); }

  // From the key's home line on.
  __attribute__((always_inline)) int64_t FindFrom(const HashLine* line, int64_t key) const {
    for (;; ++line) {
      unsigned match = 0;
      for (int k = 0; k < HashLine::kKeys; ++k) match |= static_cast<unsigned>(line->keys[k] == key) << k;
      match &= (1u << (line->count & 7)) - 1;
      if (match != 0) {
        const int64_t number = int64_t{line->first} + __builtin_ctz(match);
        return number < missing ? number : missing;
      }
      if ((line->flags & HashLine::kOverflowed) == 0 || line + 1 == lines + line_count) return missing;
    }
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
