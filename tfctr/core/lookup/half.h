// float16 and bfloat16 <-> float32, one element at a time, by integer arithmetic: unaffected by flush-to-zero modes.
// Rounding is to nearest even, as in Eigen; NaN stays NaN (payload not kept).
#ifndef TFCTR_CORE_LOOKUP_HALF_H_
#define TFCTR_CORE_LOOKUP_HALF_H_

#include <cstdint>
#include <cstring>

namespace tfctr {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// `static inline`: these are compiled into files of several instruction sets and must not be merged by the linker.
static inline float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
static inline uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static inline float ToFloat(BFloat16 value) { return BitsToFloat(static_cast<uint32_t>(value.bits) << 16); }

static inline float ToFloat(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormal: mantissa * 2^-24 is a normal float
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return BitsToFloat(sign | FloatToBits(magnitude));
  }
  if (exponent == 31) return BitsToFloat(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0u));
  return BitsToFloat(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

static inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = FloatToBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(((bits >> 16) & 0x8000u) | 0x7fc0u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

static inline Half ToHalf(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and above round to infinity
  const int32_t exponent = static_cast<int32_t>(magnitude >> 23) - 127;
  if (exponent < -25) return {static_cast<uint16_t>(sign)};
  uint32_t kept;
  uint32_t rest;
  uint32_t half;
  if (exponent < -14) {  // subnormal result
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const int32_t shift = -exponent - 1;  // 14..24
    kept = mantissa >> shift;
    rest = mantissa & ((1u << shift) - 1);
    half = 1u << (shift - 1);
  } else {
    kept = (magnitude - 0x38000000u) >> 13;
    rest = magnitude & 0x1fffu;
    half = 0x1000u;
  }
  if (rest > half || (rest == half && (kept & 1u))) ++kept;
  return {static_cast<uint16_t>(sign | kept)};
}

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_HALF_H_
