// Prefetch of table rows that will be needed soon.
// Cost: a row is a cache miss and a TLB miss, and the page walks are what a core can do least of at a time. So
// prefetches are spread over other work, a few per output row, instead of being issued in a burst.
#ifndef TFCTR_CORE_LOOKUP_ROW_PREFETCH_H_
#define TFCTR_CORE_LOOKUP_ROW_PREFETCH_H_

#include <cstdint>

namespace tfctr {

inline constexpr int64_t kPrefetchLine = 64;
inline constexpr int64_t kMaxPrefetchBytes =
    8 * kPrefetchLine;  // the rest of a wide row is for the hardware prefetcher

// Cache lines that PrefetchRow fetches.
static inline int64_t PrefetchLines(int64_t row_bytes) {
  const int64_t bytes = row_bytes < kMaxPrefetchBytes ? row_bytes : kMaxPrefetchBytes;
  return (bytes + kPrefetchLine - 1) / kPrefetchLine;
}

// `static`: compiled into files of several instruction sets.
static inline bool RowIsOneLine(int64_t row_bytes) {
  return row_bytes <= kPrefetchLine && kPrefetchLine % row_bytes == 0;
}

static inline void PrefetchRow(const uint8_t* row, int64_t row_bytes) {
  __builtin_prefetch(row);
  if (RowIsOneLine(row_bytes)) return;
  const int64_t last = (row_bytes < kMaxPrefetchBytes ? row_bytes : kMaxPrefetchBytes) - 1;
  for (int64_t at = kPrefetchLine; at < last; at += kPrefetchLine) __builtin_prefetch(row + at);
  __builtin_prefetch(row + last);
}

// Cache lines [begin, begin + bytes) of anything else.
static inline void PrefetchBytes(const void* begin, int64_t bytes) {
  const uint8_t* at = static_cast<const uint8_t*>(begin);
  for (int64_t line = 0; line < bytes; line += kPrefetchLine) __builtin_prefetch(at + line);
}

// A list of rows that is prefetched bit by bit.
class RowsAhead {
 public:
  RowsAhead(const uint8_t* const* rows, int64_t count, int64_t row_bytes)
      : at_(rows), end_(rows + count), row_bytes_(row_bytes) {}
  void Fetch(int64_t n) {
    for (; n > 0 && at_ != end_; --n, ++at_) PrefetchRow(*at_, row_bytes_);
  }
  int64_t left() const { return end_ - at_; }

 private:
  const uint8_t* const* at_;
  const uint8_t* const* end_;
  int64_t row_bytes_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_ROW_PREFETCH_H_
