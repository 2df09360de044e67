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

constexpr size_t kLanes = TFCTR_VECTOR_BYTES / 8;   // Philox blocks per vector
constexpr size_t kFloats = TFCTR_VECTOR_BYTES / 4;  // half of a vector's values
constexpr size_t kBatch = 3;                        // vectors in flight: as many as the registers hold

#if TFCTR_VECTOR_BYTES == 16
static inline Words Multiply(Words a, Words b) { return (Words)_mm_mul_epu32((__m128i)a, (__m128i)b); }
static inline Floats Sqrt(Floats x) { return (Floats)_mm_sqrt_ps((__m128)x); }
template <int kPick>
static inline Words Shuffle(Words a, Words b) {
  return (Words)_mm_shuffle_ps((__m128)a, (__m128)b, kPick);
}
#elif TFCTR_VECTOR_BYTES == 32
static inline Words Multiply(Words a, Words b) { return (Words)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
static inline Floats Sqrt(Floats x) { return (Floats)_mm256_sqrt_ps((__m256)x); }
template <int kPick>
static inline Words Shuffle(Words a, Words b) {
  return (Words)_mm256_shuffle_ps((__m256)a, (__m256)b, kPick);
}
#elif defined(__AVX512F__)  // the forms with a mask: GCC 12 warns of the others' headers
static inline Words Multiply(Words a, Words b) { return (Words)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)b); }
static inline Floats Sqrt(Floats x) { return (Floats)_mm512_maskz_sqrt_ps(0xffff, (__m512)x); }
template <int kPick>
static inline Words Shuffle(Words a, Words b) {
  return (Words)_mm512_maskz_shuffle_ps(0xffff, (__m512)a, (__m512)b, kPick);
}
#else                       // the test's: the lanes of AVX-512 on any CPU
static inline Words Multiply(Words a, Words b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
static inline Floats Sqrt(Floats x) {
  for (size_t i = 0; i < kFloats; ++i) x[i] = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x[i])));
  return x;
}
template <int kPick>
static inline Words Shuffle(Words a, Words b) {
  Halves to;
  for (size_t i = 0; i < kFloats; ++i) {
    const Halves from = (Halves)(i % 4 < 2 ? a : b);
    to[i] = from[i / 4 * 4 + ((kPick >> (2 * (i % 4))) & 3)];
  }
  return (Words)to;
}
#endif
constexpr int kEven = 0x88;  // within 128 bits: elements 0 and 2 of a, then of b
constexpr int kOdd = 0xdd;   // elements 1 and 3

// Every 128 bits hold the values of one block in the end, so the two lanes there go to different results: lanes 0, 2,
// 4, .. to the first, lanes 1, 3, .. to the second. Lane l computes the block of this number of the vector's L.
static inline constexpr size_t BlockOfLane(size_t lane) { return lane % 2 * (kLanes / 2) + lane / 2; }

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
  const Floats value = __builtin_convertvector((Ints)(words >> 8), Floats) * task.scale + task.offset;
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

// The key of every round, in all lanes: read from memory as an operand, the registers are needed for blocks.
struct RoundKeys {
  Words key0[kPhiloxRounds];
  Words key1[kPhiloxRounds];
  explicit RoundKeys(uint64_t seed) {
    for (uint32_t r = 0; r < kPhiloxRounds; ++r) {
      key0[r] = Broadcast(static_cast<uint32_t>(seed) + r * kPhiloxWeyl0);
      key1[r] = Broadcast(static_cast<uint32_t>(seed >> 32) + r * kPhiloxWeyl1);
    }
  }
};

// Rounds kFirst to the last of `kVectors` vectors of blocks.
template <int kFirst, size_t kVectors>
static inline void Philox(const RoundKeys& keys, Blocks* blocks) {
  const Words m0 = Broadcast(kPhiloxMultiplier0);
  const Words m1 = Broadcast(kPhiloxMultiplier1);
#pragma GCC unroll 10
  for (int round = kFirst; round < kPhiloxRounds; ++round) {
    const Words k0 = keys.key0[round];
    const Words k1 = keys.key1[round];
#pragma GCC unroll 8
    for (size_t v = 0; v < kVectors; ++v) {
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

// The first two rounds of blocks of one key, where half of every product is the same for all of them: with the counter
// (low, high, block, 0), round 0 gives (hi(M1*block) ^ high ^ k0, lo(M1*block), hi(M0*low) ^ k1, lo(M0*low)).
struct KeyRounds {
  Words high;    // high word of the key ^ key0[0]
  Words second;  // hi(M1*x2) ^ key0[1] after round 0
  Words x1;      // lo(M1*x2) after round 0
  Words third;   // lo(M0*low) ^ key1[1]
  KeyRounds(uint64_t key, const RoundKeys& keys) {
    const uint64_t p0 = uint64_t{kPhiloxMultiplier0} * static_cast<uint32_t>(key);
    const uint64_t p1 = kPhiloxMultiplier1 * ((p0 >> 32) ^ keys.key1[0][0]);
    high = Broadcast((key >> 32) ^ keys.key0[0][0]);
    second = Broadcast((p1 >> 32) ^ keys.key0[1][0]);
    x1 = Broadcast(p1);
    third = Broadcast(p0 ^ keys.key1[1][0]);
  }
  // State after rounds 0 and 1, of the blocks with these numbers.
  Blocks After(const Words& block) const {
    const Words p1 = Multiply(block, Broadcast(kPhiloxMultiplier1));
    const Words p0 = Multiply((p1 >> 32) ^ high, Broadcast(kPhiloxMultiplier0));
    return Blocks{second ^ p1, x1, (p0 >> 32) ^ third, p0};
  }
};

// The 4 * kLanes values of one vector of blocks, in the order of the blocks.
template <bool kNormal>
static inline void StoreValues(const FillTask& task, const Blocks& b, float* out) {
  const Words x01 = Shuffle<kEven>(b.x0, b.x1);
  const Words x23 = Shuffle<kEven>(b.x2, b.x3);
  const Floats first = Value<kNormal>(task, Shuffle<kEven>(x01, x23));
  const Floats second = Value<kNormal>(task, Shuffle<kOdd>(x01, x23));
  std::memcpy(out, &first, sizeof first);
  std::memcpy(out + kFloats, &second, sizeof second);
}

// The same for fewer values.
template <bool kNormal>
static inline void StorePart(const FillTask& task, const Blocks& b, float* out, size_t count) {
  alignas(64) float values[4 * kLanes];
  StoreValues<kNormal>(task, b, values);
  std::memcpy(out, values, count * sizeof(float));
}

// All lanes of a vector belong to one row: for rows of at least one vector.
template <bool kNormal>
static void FillWide(const FillTask& task, const int64_t* keys, size_t n, float* const* rows) {
  constexpr size_t kValues = 4 * kLanes;
  const RoundKeys round_keys(task.seed);
  const size_t dim = static_cast<size_t>(task.dim);
  const size_t per_row = (dim + kValues - 1) / kValues;
  const size_t last = dim - (per_row - 1) * kValues;  // values of a row's last vector
  Words iota;
  for (size_t lane = 0; lane < kLanes; ++lane) iota[lane] = BlockOfLane(lane);
  size_t row = 0;
  size_t part = 0;
  KeyRounds key(n > 0 ? static_cast<uint64_t>(keys[0]) : 0, round_keys);
  while (row < n) {
    Blocks blocks[kBatch];
    float* out[kBatch];
    bool whole[kBatch];
    size_t count = 0;
    for (; count < kBatch && row < n; ++count) {
      blocks[count] = key.After(iota + part * kLanes);
      out[count] = rows[row] + part * kValues;
      whole[count] = ++part < per_row || last == kValues;
      if (part == per_row) {
        part = 0;
        if (++row < n) key = KeyRounds(static_cast<uint64_t>(keys[row]), round_keys);
      }
    }
    if (count == kBatch) {
      Philox<2, kBatch>(round_keys, blocks);
    } else {
      for (size_t v = 0; v < count; ++v) Philox<2, 1>(round_keys, blocks + v);
    }
    for (size_t v = 0; v < count; ++v) {
      if (whole[v]) {
        StoreValues<kNormal>(task, blocks[v], out[v]);
      } else {
        StorePart<kNormal>(task, blocks[v], out[v], last);
      }
    }
  }
}

// Lanes are dealt out block by block, so that a vector spans several rows: for rows of less than a vector.
template <bool kNormal>
static void FillNarrow(const FillTask& task, const int64_t* keys, size_t n, float* const* rows) {
  const RoundKeys round_keys(task.seed);
  const size_t dim = static_cast<size_t>(task.dim);
  const size_t per_row = (dim + 3) / 4;
  size_t row = 0;
  size_t part = 0;
  while (row < n) {
    Blocks blocks[kBatch];
    float* out[kBatch * kLanes];
    size_t width[kBatch * kLanes];
    size_t lanes = 0;
#pragma GCC unroll 4
    for (size_t v = 0; v < kBatch; ++v) {
      Words key{};
      Words block{};
#pragma GCC unroll 8
      for (size_t i = 0; i < kLanes; ++i) {
        const size_t lane = i < kLanes / 2 ? 2 * i : 2 * i - kLanes + 1;  // BlockOfLane(lane) is i
        if (row == n) break;
        key[lane] = static_cast<uint64_t>(keys[row]);
        block[lane] = part;
        out[lanes] = rows[row] + part * 4;
        width[lanes] = dim - part * 4 < 4 ? dim - part * 4 : 4;
        ++lanes;
        if (++part == per_row) {
          part = 0;
          ++row;
        }
      }
      blocks[v] = Blocks{key, key >> 32, block, Words{}};
    }
    Philox<0, kBatch>(round_keys, blocks);
    alignas(64) float values[kBatch * 4 * kLanes];
    for (size_t v = 0; v < kBatch; ++v) StoreValues<kNormal>(task, blocks[v], values + v * 4 * kLanes);
    for (size_t i = 0; i < lanes; ++i) {
      const float* from = values + 4 * i;
      if (width[i] == 4) {
        std::memcpy(out[i], from, 4 * sizeof(float));
      } else {
        for (size_t c = 0; c < width[i]; ++c) out[i][c] = from[c];
      }
    }
  }
}

template <bool kNormal>
static void FillRandom(const FillTask& task, const int64_t* keys, size_t n, float* const* rows) {
  if (static_cast<size_t>(task.dim) >= 4 * kLanes) {
    FillWide<kNormal>(task, keys, n, rows);
  } else {
    FillNarrow<kNormal>(task, keys, n, rows);
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
