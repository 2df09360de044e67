// The one way in which the floats and the metadata of a row that other threads can reach are read and written.
//
// Lookups read rows while updates write them: that is the intended semantics (each float is some value that it had,
// the row as a whole may be a mixture), so the accesses are relaxed. Counters, steps and times are always relaxed
// atomics. Floats are relaxed atomics in a ThreadSanitizer build, which then reports every *other* race; elsewhere they
// are plain accesses of aligned words, which the CPU never tears, because compilers vectorise no atomic access
// (tests/core/test_relaxed.py checks both).
// Thread-safety: that's the point. Cost: none; loops over LoadRelaxed and StoreRelaxed vectorise as over plain arrays.
#ifndef TFCTR_CORE_STORAGE_RELAXED_H_
#define TFCTR_CORE_STORAGE_RELAXED_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tfctr {

// `static`: compiled into files of several instruction sets.
static inline float LoadRelaxed(const float* from) {
#ifdef __SANITIZE_THREAD__
  const uint32_t bits = __atomic_load_n(reinterpret_cast<const uint32_t*>(from), __ATOMIC_RELAXED);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#else
  return *from;
#endif
}

static inline void StoreRelaxed(float* to, float value) {
#ifdef __SANITIZE_THREAD__
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  __atomic_store_n(reinterpret_cast<uint32_t*>(to), bits, __ATOMIC_RELAXED);
#else
  *to = value;
#endif
}

// n floats of a row into private memory.
static inline void ReadRow(float* __restrict to, const float* __restrict row, size_t n) {
#ifdef __SANITIZE_THREAD__
  for (size_t i = 0; i < n; ++i) to[i] = LoadRelaxed(row + i);
#else
  std::memcpy(to, row, n * sizeof(float));
#endif
}

// n floats of private memory into a row.
static inline void WriteRow(float* __restrict row, const float* __restrict from, size_t n) {
#ifdef __SANITIZE_THREAD__
  for (size_t i = 0; i < n; ++i) StoreRelaxed(row + i, from[i]);
#else
  std::memcpy(row, from, n * sizeof(float));
#endif
}

// Metadata: frequency, last step, last time.
static inline uint32_t LoadRelaxed(const uint32_t* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
static inline int64_t LoadRelaxed(const int64_t* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
static inline void StoreRelaxed(uint32_t* to, uint32_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
static inline void StoreRelaxed(int64_t* to, int64_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }

// Adds to a counter, which stays at its largest value instead of wrapping.
static inline void AddSaturating(uint32_t* counter, uint32_t by) {
  const uint32_t before = __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
  if (__builtin_expect(before > UINT32_MAX - by, 0)) __atomic_store_n(counter, UINT32_MAX, __ATOMIC_RELAXED);
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_RELAXED_H_
