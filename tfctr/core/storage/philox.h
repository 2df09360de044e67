// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based generator, a
// pure function from (counter, key) to four 32-bit words. This is the one-block form; row_initializer_impl.h holds the
// vectorised form of the same function.
// Thread-safety: pure functions. Cost: about 10 ns a block.
#ifndef TFCTR_CORE_STORAGE_PHILOX_H_
#define TFCTR_CORE_STORAGE_PHILOX_H_

#include <array>
#include <cstdint>

namespace tfctr {

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u;  // added to the key's words after each round
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

inline std::array<uint32_t, 4> Philox4x32(const std::array<uint32_t, 4>& counter, uint32_t key0, uint32_t key1) {
  std::array<uint32_t, 4> x = counter;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxMultiplier0} * x[0];
    const uint64_t p1 = uint64_t{kPhiloxMultiplier1} * x[2];
    x = {static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ key0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ key1, static_cast<uint32_t>(p0)};
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return x;
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_PHILOX_H_
