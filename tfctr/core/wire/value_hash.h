// A stable 64-bit hash of one value of a request, for splitting traffic: the same for the same value whatever message
// and type it came in, in every process and release.
//
//   whole numbers   by value: 7 as int32, uint64, float32 or JSON's 7.0
//   other numbers   by value as a float32: 0.1 from JSON is 0.1 in FP32
//   text            by its bytes
//   true, false     as 1 and 0
#ifndef TFCTR_CORE_WIRE_VALUE_HASH_H_
#define TFCTR_CORE_WIRE_VALUE_HASH_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tfctr {

// Spreads every bit of `x` over all (the finaliser of SplitMix64).
inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// FNV-1a over the bytes, then mixed; `kind` keeps numbers and texts apart.
inline uint64_t HashValueBytes(char kind, std::string_view bytes) {
  constexpr uint64_t kStart = 0xCBF29CE484222325u, kPrime = 0x100000001B3u;
  uint64_t hash = (kStart ^ static_cast<uint8_t>(kind)) * kPrime;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * kPrime;
  return MixBits(hash);
}

inline uint64_t HashBits(char kind, uint64_t bits) {
  char bytes[sizeof(bits)];
  std::memcpy(bytes, &bits, sizeof(bits));
  return HashValueBytes(kind, std::string_view(bytes, sizeof(bytes)));
}

inline uint64_t HashSigned(int64_t value) { return HashBits('i', static_cast<uint64_t>(value)); }
inline uint64_t HashUnsigned(uint64_t value) { return HashBits(value > INT64_MAX ? 'u' : 'i', value); }
inline uint64_t HashText(std::string_view text) { return HashValueBytes('s', text); }

inline uint64_t HashReal(double value) {
  constexpr double kTwo63 = 9223372036854775808.0;
  if (value == std::floor(value) && value >= -kTwo63 && value < kTwo63) return HashSigned(static_cast<int64_t>(value));
  if (std::isnan(value)) return HashBits('f', 0x7FC00000u);
  const auto narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof(bits));
  return HashBits('f', bits);
}

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_VALUE_HASH_H_
