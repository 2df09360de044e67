// Initial values of embedding rows: a pure function of (seed, key, column), whatever the order of the keys, the number
// of shards or threads, the instruction set or the process. A key that was evicted gets the same values again.
//
// Column c of key k takes word c%4 of Philox4x32-10 with counter (low word of k, high word of k, c/4, 0) and key (low
// word of seed, high word of seed). From that word x:
//   uniform           low + (x >> 8) * ((high - low) * 2^-24) in float, never above the float below `high`
//   normal            the top bit of x is the sign, the other 31 give the tail probability p = (m + 1/2) * 2^-32; the
//                     quantile comes from our own rational function (error below 3e-6), so values reach 6.3 stddev
//   truncated normal  the same with p between Phi(-2) and 1/2: the normal distribution given |z| <= 2
// Basic operations and square root only, each rounded as IEEE says and never contracted; nothing of libm.
//
// Thread-safety: const after construction, usable by many threads. Cost at dim 16 / 64 with AVX2 (Zen 3 at 3 GHz, one
// core, rows in cache, 256 keys a call): uniform 13 / 44 ns a row, normal 41 / 160 ns. A call sets up its round keys,
// so hand in many keys at once.
#ifndef TFCTR_CORE_STORAGE_ROW_INITIALIZER_H_
#define TFCTR_CORE_STORAGE_ROW_INITIALIZER_H_

#include <cstddef>
#include <cstdint>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/isa.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct InitializerConfig {
  enum class Kind : int { kConstant, kUniform, kNormal, kTruncatedNormal };
  Kind kind = Kind::kUniform;
  float a = -0.05f;  // value | low  | mean
  float b = 0.05f;   // unused | high | standard deviation (of the normal distribution before it is cut at 2 of them)
  uint64_t seed = 0;
};

// What RowInitializer hands to the kernel of its instruction set.
struct FillTask {
  InitializerConfig::Kind kind;
  float offset;      // low | mean
  float scale;       // (high - low) * 2^-24 | stddev
  float limit;       // uniform: the largest value
  float tail_start;  // normal: p = tail_start + (m + 1/2) * tail_step
  float tail_step;
  float max_z;
  uint64_t seed;
  int dim;
};

class TFCTR_EXPORT RowInitializer {
 public:
  // kInvalid, naming the value, where a number is not finite, low > high, stddev < 0 or dim < 1; and what ActiveIsa
  // says of a bad TFCTR_ISA.
  static Status Check(const InitializerConfig& config, int dim);

  // For a config that passed Check.
  RowInitializer(const InitializerConfig& config, int dim);
  // With the kernel of one instruction set, which this CPU must support: for tests.
  RowInitializer(const InitializerConfig& config, int dim, Isa isa);

  // Writes the `dim` values of keys[i] to rows[i] (any alignment). Plain stores: no other thread may see the rows yet.
  void Fill(const int64_t* keys, size_t n, float* const* rows) const;

  const InitializerConfig& config() const { return config_; }
  int dim() const { return task_.dim; }

 private:
  using Kernel = void (*)(const FillTask& task, const int64_t* keys, size_t n, float* const* rows);

  InitializerConfig config_;
  FillTask task_;
  Kernel kernel_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_ROW_INITIALIZER_H_
