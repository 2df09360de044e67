// What the two kinds of admission share; for admission*.cc only.
// Thread-safety: pure functions.
#ifndef TFCTR_CORE_STORAGE_ADMISSION_IMPL_H_
#define TFCTR_CORE_STORAGE_ADMISSION_IMPL_H_

#include <cstdint>
#include <limits>
#include <memory>

#include "tfctr/core/storage/admission.h"

namespace tfctr {

Result<std::shared_ptr<Admission>> CreateCounterAdmission(const AdmissionConfig& config);
Result<std::shared_ptr<Admission>> CreateBloomAdmission(const AdmissionConfig& config);

// A bijection of 64-bit words that spreads every input bit over all output bits (the 64-bit finalizer of MurmurHash3).
inline uint64_t MixKey(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33;
  return x;
}

// Maps a hash to [0, range) by its high bits; any range, no division.
inline uint64_t ScaleToRange(uint64_t hash, uint64_t range) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * range) >> 64);
}

inline uint32_t SaturatingAdd(uint32_t a, uint32_t b, uint32_t limit = std::numeric_limits<uint32_t>::max()) {
  return b >= limit - a ? limit : a + b;
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_ADMISSION_IMPL_H_
