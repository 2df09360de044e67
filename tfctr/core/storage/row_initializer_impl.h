// Body of the initial values, compiled by row_initializer_{baseline,avx2,avx512}.cc. No include guard on purpose: the
// includer defines TFCTR_FILL (the function's name), TFCTR_ISA_NAMESPACE and TFCTR_VECTOR_BYTES first.
//
// Philox blocks are computed one per 64-bit lane, whose upper half is free to hold rubbish: a 32x32->64 multiplication
// reads lower halves only, and its low result can stay where it is. A vector of L lanes gives 4*L values, whose bits
// do not depend on L: every value comes from its own lane by the same operations, and -ffp-contract=off keeps a*b+c two
// roundings.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tfctr/core/storage/philox.h"
#include "tfctr/core/storage/row_initializer.h"

namespace tfctr {

void TFCTR_FILL(const FillTask& task, const int64_t* keys, size_t n, float* const* rows);

namespace TFCTR_ISA_NAMESPACE {

typedef uint64_t Words __attribute__((vector_size(TFCTR_VECTOR_BYTES)));
typedef uint32_t Halves __attribute__((vector_size(TFCTR_VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(TFCTR_VECTOR_BYTES)));
typedef float Floats __attribute__((vector_size(TFCTR_VECTOR_BYTES)));

constexpr int kLanes = TFCTR_VECTOR_BYTES / 8;  // Philox blocks per vector
constexpr int kFloats = TFCTR_VECTOR_BYTES / 4;
constexpr int kBatch = 3;  // vectors in flight: as many as the registers hold

// Which block of a vector's L consecutive blocks lane l computes: interleaving two vectors puts lanes 0, 2, .. into one
// result and lanes 1, 3, .. into the other.
static inline constexpr int BlockOfLane(int lane) { return lane % 2 == 0 ? lane / 2 : kLanes / 2 + lane / 2; }

#if TFCTR_VECTOR_BYTES == 16
static inline Words Multiply(Words a, Words b) { return (Words)_mm_mul_epu32((__m128i)a, (__m128i)b); }
static inline Floats Sqrt(Floats x) { return (Floats)_mm_sqrt_ps((__m128)x); }
static inline Words UnpackLow(Words a, Words b) { return (Words)_mm_unpacklo_epi64((__m128i)a, (__m128i)b); }
static inline Words UnpackHigh(Words a, Words b) { return (Words)_mm_unpackhi_epi64((__m128i)a, (__m128i)b); }
#elif TFCTR_VECTOR_BYTES == 32
static inline Words Multiply(Words a, Words b) { return (Words)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
static inline Floats Sqrt(Floats x) { return (Floats)_mm256_sqrt_ps((__m256)x); }
static inline Words UnpackLow(Words a, Words b) { return (Words)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b); }
static inline Words UnpackHigh(Words a, Words b) { return (Words)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b); }
#else  // the forms with a mask: GCC 12 warns of the others' headers
static inline Words Multiply(Words a, Words b) { return (Words)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b); }
static inline Floats Sqrt(Floats x) { return (Floats)_mm512_maskz_sqrt_ps(0xffff, (__m512)x); }
static inline Words UnpackLow(Words a, Words b) {
  return (Words)_mm512_maskz_unpacklo_epi64(0xff, (__m512i)a, (__m512i)b);
}
static inline Words UnpackHigh(Words a, Words b) {
  return (Words)_mm512_maskz_unpackhi_epi64(0xff, (__m512i)a, (__m512i)b);
}
#endif

static inline Words Broadcast(uint64_t x) { return Words{} + x; }
static inline Floats Splat(float x) { return Floats{} + x; }
static inline Floats Polynomial(Floats x, const float* coefficients, int count) {
  Floats y = Splat(coefficients[count - 1]);
  for (int i = count - 2; i >= 0; --i) y = y * x + coefficients[i];
  return y;
}

// The natural logarithm of 0 < x < 1, error below 2e-7 of it.
static inline Floats Log(Floats x) {
  // ln(1 + f) = f - f^2/2 + f^3 * R(f) for sqrt(1/2) <= 1 + f < sqrt(2); R is a Chebyshev fit, error 6e-8.
  static constexpr float kR[] = {0.3333341026240835f,   -0.25000921694095773f, 0.19985129114570155f,
                                 -0.16592855181671803f, 0.1467637877931455f,   -0.14118431875792484f,
                                 0.09272283060009574f};
  constexpr int32_t kRootHalf = 0x3f3504f3;
  const Ints bits = (Ints)x;
  const Ints exponent = (bits - kRootHalf) >> 23;
  const Floats f = (Floats)(bits - (exponent << 23)) - 1.0f;
  const Floats square = f * f;
  const Floats log1p = (f - square * 0.5f) + square * f * Polynomial(f, kR, 7);
  return __builtin_convertvector(exponent, Floats) * 0.693147181f + log1p;
}

// z > 0 with Phi(-z) = p, for 2^-33 <= p <= 1/2. With t = sqrt(-2 ln p), z is nearly t: the rational function below is
// a minimax fit over that range (tools/fit_normal_quantile.py), error 4e-8, about 2e-6 with float32 roundings.
static inline Floats UpperQuantile(Floats p) {
  static constexpr float kP[] = {-3.2013386101704135f, -7.747254913127394f, 3.3565746656990125f, 4.115280102436189f,
                                 0.4957416149266928f};
  static constexpr float kQ[] = {1.0f, 5.396531492168897f, 4.137091286384943f, 0.49544267068163295f};
  const Floats t = Sqrt(Log(p) * -2.0f);
  return Polynomial(t, kP, 5) / Polynomial(t, kQ, 4);
}

// Random words to values.
static inline Floats Uniform(const FillTask& task, Halves words) {
  const Floats unit = __builtin_convertvector((Ints)(words >> 8), Floats) * 0x1p-24f;
  const Floats value = unit * task.scale + task.offset;
  return value < Splat(task.limit) ? value : Splat(task.limit);
}

static inline Floats Normal(const FillTask& task, Halves words) {
  const Floats middle = __builtin_convertvector((Ints)(words & 0x7fffffffu), Floats) + 0.5f;
  Floats z = UpperQuantile(middle * task.tail_step + task.tail_start);
  z = z < Splat(task.max_z) ? z : Splat(task.max_z);
  z = (Floats)((Halves)z ^ (words & 0x80000000u));
  return z * task.scale + task.offset;
}

template <bool kNormal>
static inline Floats Value(const FillTask& task, Words words) {
  return kNormal ? Normal(task, (Halves)words) : Uniform(task, (Halves)words);
}

struct Blocks {
  Words x0, x1, x2, x3;
};

struct RoundKeys {
  uint32_t key0[kPhiloxRounds];
  uint32_t key1[kPhiloxRounds];
  explicit RoundKeys(uint64_t seed) {
    for (int r = 0; r < kPhiloxRounds; ++r) {
      key0[r] = static_cast<uint32_t>(seed) + static_cast<uint32_t>(r) * kPhiloxWeyl0;
      key1[r] = static_cast<uint32_t>(seed >> 32) + static_cast<uint32_t>(r) * kPhiloxWeyl1;
    }
  }
};

template <int kVectors>
static inline void Philox(const RoundKeys& keys, Blocks* blocks) {
  const Words m0 = Broadcast(kPhiloxMultiplier0);
  const Words m1 = Broadcast(kPhiloxMultiplier1);
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const Words k0 = Broadcast(keys.key0[round]);
    const Words k1 = Broadcast(keys.key1[round]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Blocks& b = blocks[v];
      const Words p0 = Multiply(b.x0, m0);
      const Words p1 = Multiply(b.x2, m1);
      b.x0 = (p1 >> 32) ^ b.x1 ^ k0;
      b.x1 = p1;
      b.x2 = (p0 >> 32) ^ b.x3 ^ k1;
      b.x3 = p0;
    }
  }
}

// The 4 * kLanes values of one vector of blocks, in the order of the blocks.
template <bool kNormal>
static inline void StoreValues(const FillTask& task, const Blocks& b, float* out) {
  const Words low = (b.x0 & 0xffffffffu) | (b.x1 << 32);
  const Words high = (b.x2 & 0xffffffffu) | (b.x3 << 32);
  const Floats first = Value<kNormal>(task, UnpackLow(low, high));
  const Floats second = Value<kNormal>(task, UnpackHigh(low, high));
  std::memcpy(out, &first, sizeof first);
  std::memcpy(out + kFloats, &second, sizeof second);
}

// Rows of whole vectors of blocks: all lanes of a vector belong to one row, and values are stored where they belong.
template <bool kNormal>
static void FillWhole(const FillTask& task, const int64_t* keys, size_t n, float* const* rows) {
  const RoundKeys round_keys(task.seed);
  const size_t per_row = static_cast<size_t>(task.dim) / (4 * kLanes);
  const size_t total = n * per_row;
  Words iota;
  for (int lane = 0; lane < kLanes; ++lane) iota[lane] = static_cast<uint64_t>(BlockOfLane(lane));
  size_t row = 0;
  size_t part = 0;
  for (size_t at = 0; at < total;) {
    const int count = total - at < kBatch ? 1 : kBatch;
    Blocks blocks[kBatch];
    float* out[kBatch];
    for (int v = 0; v < count; ++v) {
      const Words key = Broadcast(static_cast<uint64_t>(keys[row]));
      blocks[v] = Blocks{key, key >> 32, iota + part * kLanes, Words{}};
      out[v] = rows[row] + part * 4 * kLanes;
      if (++part == per_row) {
        part = 0;
        ++row;
      }
    }
    if (count == kBatch) {
      Philox<kBatch>(round_keys, blocks);
    } else {
      Philox<1>(round_keys, blocks);
    }
    for (int v = 0; v < count; ++v) StoreValues<kNormal>(task, blocks[v], out[v]);
    at += static_cast<size_t>(count);
  }
}

// Rows of any width: lanes are dealt out one after the other, values go through a buffer.
template <bool kNormal>
static void FillAny(const FillTask& task, const int64_t* keys, size_t n, float* const* rows) {
  const RoundKeys round_keys(task.seed);
  const size_t per_row = (static_cast<size_t>(task.dim) + 3) / 4;
  const size_t dim = static_cast<size_t>(task.dim);
  const size_t total = n * per_row;
  size_t row = 0;
  size_t part = 0;
  for (size_t at = 0; at < total;) {
    alignas(64) uint64_t key[kLanes] = {};
    alignas(64) uint64_t block[kLanes] = {};
    float* out[kLanes];
    size_t width[kLanes];
    const int count = static_cast<int>(total - at < kLanes ? total - at : kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      // The i-th block of this vector sits in the lane whose BlockOfLane is i.
      const int i = lane;
      if (i >= count) break;
      const int place = i < kLanes / 2 ? 2 * i : 2 * (i - kLanes / 2) + 1;
      key[place] = static_cast<uint64_t>(keys[row]);
      block[place] = part;
      out[i] = rows[row] + part * 4;
      width[i] = dim - part * 4 < 4 ? dim - part * 4 : 4;
      if (++part == per_row) {
        part = 0;
        ++row;
      }
    }
    Words x0, x2;
    std::memcpy(&x0, key, sizeof x0);
    std::memcpy(&x2, block, sizeof x2);
    Blocks blocks[1] = {Blocks{x0, x0 >> 32, x2, Words{}}};
    Philox<1>(round_keys, blocks);
    alignas(64) float values[4 * kLanes];
    StoreValues<kNormal>(task, blocks[0], values);
    for (int i = 0; i < count; ++i) {
      if (width[i] == 4) {
        std::memcpy(out[i], values + 4 * i, 4 * sizeof(float));
      } else {
        for (size_t c = 0; c < width[i]; ++c) out[i][c] = values[4 * i + static_cast<int>(c)];
      }
    }
    at += static_cast<size_t>(count);
  }
}

template <bool kNormal>
static void FillRandom(const FillTask& task, const int64_t* keys, size_t n, float* const* rows) {
  if (task.dim % (4 * kLanes) == 0) {
    FillWhole<kNormal>(task, keys, n, rows);
  } else {
    FillAny<kNormal>(task, keys, n, rows);
  }
}

}  // namespace TFCTR_ISA_NAMESPACE

void TFCTR_FILL(const FillTask& task, const int64_t* keys, size_t n, float* const* rows) {
  switch (task.kind) {
    case InitializerConfig::Kind::kConstant:
      for (size_t i = 0; i < n; ++i) {
        for (int c = 0; c < task.dim; ++c) rows[i][c] = task.offset;
      }
      break;
    case InitializerConfig::Kind::kUniform:
      TFCTR_ISA_NAMESPACE::FillRandom<false>(task, keys, n, rows);
      break;
    case InitializerConfig::Kind::kNormal:
    case InitializerConfig::Kind::kTruncatedNormal:
      TFCTR_ISA_NAMESPACE::FillRandom<true>(task, keys, n, rows);
      break;
  }
}

}  // namespace tfctr
