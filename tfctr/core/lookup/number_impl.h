// Body of the number kernels, compiled by number_baseline.cc, number_avx2.cc and number_avx512.cc. No include guard on
// purpose: the includer defines TFCTR_ISA_NAMESPACE first.
//
// Keys are worked on in groups. While one is looked for in its index lines, the lines of the next one are on their way
// into the cache, and so are the rows of those that were found. What an overlay may hold is written to a list without
// a branch, and asked for when a block is done: few keys, in one loop, their slots fetched ahead.

#include <cstdint>

#include "tfctr/core/lookup/number_kernels.h"
#include "tfctr/core/lookup/row_prefetch.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tfctr {
namespace TFCTR_ISA_NAMESPACE {

constexpr int64_t kGroup = 32;
constexpr int64_t kBlock = 1024;
constexpr int64_t kSlotsAhead = 8;

// Functions of their own, not members: what is compiled for AVX must not be what the linker keeps for everybody.
static inline int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline const OverlaySlot* HomeSlot(const OverlayIndex& overlay, int64_t key) {
  return overlay.Home(overlay.HashOf(key));
}

// Bit k: key k of the line is `key`, or lies behind the line's count.
static inline unsigned LineMatches(const HashLine* line, int64_t key) {
#if defined(__AVX512F__)
  return _mm512_cmpeq_epi64_mask(_mm512_load_si512(line), _mm512_set1_epi64(key));
#elif defined(__AVX2__)
  const __m256i wanted = _mm256_set1_epi64x(key);
  const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(line));
  const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(line) + 1);
  const int low_bits = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(low, wanted)));
  const int high_bits = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(high, wanted)));
  return static_cast<unsigned>(low_bits | high_bits << 4);
#else
  unsigned match = 0;
  for (int k = 0; k < HashLine::kKeys; ++k) match |= static_cast<unsigned>(line->keys[k] == key) << k;
  return match;
#endif
}

// The key's row number where it lies in this line, else -1.
static inline int64_t FindInLine(const HashIndex& index, const HashLine* line, int64_t key) {
  const unsigned match = LineMatches(line, key) & ((1u << (line->count & 7)) - 1);
  if (__builtin_expect(match == 0, 0)) return -1;
  const int64_t number = int64_t{line->first} + __builtin_ctz(match);
  return number < index.missing ? number : index.missing;
}

// As HashIndex::FindBehind.
__attribute__((noinline)) static int64_t FindBehind(const HashIndex& index, const HashLine* line, int64_t key) {
  const uint16_t bit = OverflowBit(HashOfKey(key, index.salt));
  const HashLine* const end = index.lines + index.line_count;
  for (uint64_t walked = 0; walked < HashLine::kMaxWalk && (line->overflow & bit) != 0 && ++line != end; ++walked) {
    const int64_t number = FindInLine(index, line, key);
    if (number >= 0) return number;
  }
  return index.missing;
}

// Keys of one block that the overlay may hold.
struct HeldKeys {
  int64_t keys[kBlock];
  uint16_t places[kBlock];
  int64_t count = 0;

  // Stays only if `may_hold`.
  inline void Put(int64_t key, int64_t place, bool may_hold) {
    keys[count] = key;
    places[count] = static_cast<uint16_t>(place);
    count += may_hold ? 1 : 0;
  }
};

// Puts the overlay's numbers in place of those found so far; keys that were dropped (-1) stay so.
static inline void Redirect(const OverlayIndex& overlay, const HeldKeys& held, int64_t* numbers) {
  for (int64_t c = 0; c < Least(held.count, kSlotsAhead); ++c) __builtin_prefetch(HomeSlot(overlay, held.keys[c]));
  for (int64_t c = 0; c < held.count; ++c) {
    if (c + kSlotsAhead < held.count) __builtin_prefetch(HomeSlot(overlay, held.keys[c + kSlotsAhead]));
    int64_t* number = numbers + held.places[c];
    if (*number < 0) continue;
    *number = overlay.FindFrom(HomeSlot(overlay, held.keys[c]), held.keys[c], *number);
  }
}

static inline int64_t CountEqual(const int64_t* numbers, int64_t n, int64_t wanted) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += numbers[i] == wanted ? 1 : 0;
  return count;
}

// kOneHash: base and overlay have one salt.
template <bool kOverlay, bool kOneHash>
static inline void FetchLines(const NumberTask& task, const int64_t* keys, int64_t first, int64_t n,
                              const HashLine** lines, HeldKeys* held) {
  const HashIndex& index = *task.index;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t key = keys[first + i];
    const uint64_t hash = HashOfKey(key, index.salt);
    lines[i] = index.lines + HomeOfHash(hash, index.homes);
    __builtin_prefetch(lines[i]);
    if (!kOverlay) continue;
    held->Put(key, first + i, task.overlay->MayHold(kOneHash ? hash : task.overlay->HashOf(key)));
  }
}

template <bool kOverlay, bool kOneHash>
static void FindNumbers(const NumberTask& task) {
  const HashLine* lines[2][kGroup];
  HeldKeys held;
  int64_t missing = 0;  // counted where it is known anyway; not with an overlay, which may have the key
  for (int64_t at = 0; at < task.n; at += kBlock) {
    int64_t* const keys = task.ids + at;
    const int64_t n = Least(kBlock, task.n - at);
    held.count = 0;
    FetchLines<kOverlay, kOneHash>(task, keys, 0, Least(n, kGroup), lines[0], &held);
    int turn = 0;
    for (int64_t begin = 0; begin < n; begin += kGroup, turn ^= 1) {
      const int64_t end = Least(n, begin + kGroup);
      if (end < n) {
        FetchLines<kOverlay, kOneHash>(task, keys, end, Least(n - end, kGroup), lines[turn ^ 1], &held);
      }
      uint32_t dropped = 0;
      if (task.drop_negative) {
        for (int64_t i = begin; i < end; ++i) dropped |= static_cast<uint32_t>(keys[i] < 0) << (i - begin);
      }
      for (int64_t i = begin; i < end; ++i) {
        const HashLine* const line = lines[turn][i - begin];
        int64_t number = FindInLine(*task.index, line, keys[i]);
        if (__builtin_expect(number < 0, 0)) {
          number = line->overflow == 0 ? task.index->missing : FindBehind(*task.index, line, keys[i]);
          missing += number == task.index->missing ? 1 : 0;
        }
        keys[i] = number;
        if (task.row_bytes > 0) PrefetchRow(task.table + number * task.row_bytes, task.row_bytes);
      }
      for (; dropped != 0; dropped &= dropped - 1) {
        int64_t* const key = keys + begin + __builtin_ctz(dropped);
        missing -= *key == task.index->missing ? 1 : 0;
        *key = -1;
      }
    }
    if (kOverlay) Redirect(*task.overlay, held, keys);
    if (kOverlay && task.missing != nullptr) *task.missing += CountEqual(keys, n, task.index->missing);
  }
  if (!kOverlay && task.missing != nullptr) *task.missing += missing;
}

// Ids of a table file, where its overlay has newer rows. Ids that are in no row stay out of all rows.
static void RedirectNumbers(const NumberTask& task) {
  const OverlayIndex& overlay = *task.overlay;
  const uint64_t rows = static_cast<uint64_t>(task.base_rows);
  HeldKeys held;
  for (int64_t at = 0; at < task.n; at += kBlock) {
    int64_t* const ids = task.ids + at;
    const int64_t n = Least(kBlock, task.n - at);
    held.count = 0;
    for (int64_t i = 0; i < n; ++i) {
      int64_t id = ids[i];
      if (__builtin_expect(static_cast<uint64_t>(id) >= rows, 0)) {
        const int64_t wrapped = static_cast<int64_t>(static_cast<uint64_t>(id) + static_cast<uint64_t>(task.wrap));
        if (id >= 0) {
          ids[i] = NumberTask::kOutside;
          continue;
        }
        if (static_cast<uint64_t>(wrapped) >= rows) continue;
        ids[i] = id = wrapped;
      }
      held.Put(id, i, overlay.MayHold(overlay.HashOf(id)));
    }
    Redirect(overlay, held, ids);
  }
}

static void Number(const NumberTask& task) {
  if (task.index == nullptr) {
    RedirectNumbers(task);
  } else if (task.overlay == nullptr) {
    FindNumbers<false, false>(task);
  } else if (task.overlay->salt == task.index->salt) {
    FindNumbers<true, true>(task);
  } else {
    FindNumbers<true, false>(task);
  }
}

}  // namespace TFCTR_ISA_NAMESPACE
}  // namespace tfctr
