// Body of the optimizers, compiled by optimizers_{baseline,avx2,avx512}.cc. No include guard on purpose: the includer
// defines TFCTR_APPLY (the function's name), TFCTR_ISA_NAMESPACE and TFCTR_VECTOR_BYTES first.
//
// Bit-equality across instruction sets: every column is computed by the same operations in the same order whatever the
// vector length, -ffp-contract=off keeps a*b+c two roundings, and the one sum over columns (row-wise Adagrad) has 16
// fixed partial sums.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tfctr/core/embedding/optimizer_task.h"
#include "tfctr/core/storage/relaxed.h"

namespace tfctr {

void TFCTR_APPLY(const OptimizerTask& task, float* const* rows, const float* grads, size_t n);

namespace TFCTR_ISA_NAMESPACE {

typedef float Floats __attribute__((vector_size(TFCTR_VECTOR_BYTES)));
constexpr size_t kFloats = TFCTR_VECTOR_BYTES / 4;
constexpr size_t kLine = 64;
constexpr size_t kMostLines = 16;  // of a row, prefetched
constexpr size_t kAhead = 8;       // rows

#if TFCTR_VECTOR_BYTES == 16
static inline Floats Sqrt(Floats x) { return (Floats)_mm_sqrt_ps((__m128)x); }
#elif TFCTR_VECTOR_BYTES == 32
static inline Floats Sqrt(Floats x) { return (Floats)_mm256_sqrt_ps((__m256)x); }
#elif defined(__AVX512F__)  // the form with a mask: GCC 12 warns of the other's header
static inline Floats Sqrt(Floats x) { return (Floats)_mm512_maskz_sqrt_ps(0xffff, (__m512)x); }
#else                       // the test's: the lanes of AVX-512 on any CPU
static inline Floats Sqrt(Floats x) {
  for (size_t i = 0; i < kFloats; ++i) x[i] = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x[i])));
  return x;
}
#endif
static inline float SqrtOne(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

static inline Floats Splat(float x) { return Floats{} + x; }
static inline Floats Clamp(Floats x, float limit) {
  x = x < Splat(limit) ? x : Splat(limit);
  return x > Splat(-limit) ? x : Splat(-limit);
}

// `count` floats of a row that other threads can reach; those behind them are 0.
template <bool kWhole>
static inline Floats Load(const float* from, size_t count) {
  alignas(TFCTR_VECTOR_BYTES) float buffer[kFloats] = {};
  ReadRow(buffer, from, kWhole ? kFloats : count);
  Floats value;
  std::memcpy(&value, buffer, sizeof value);
  return value;
}

template <bool kWhole>
static inline void Store(float* to, Floats value, size_t count) {
  alignas(TFCTR_VECTOR_BYTES) float buffer[kFloats];
  std::memcpy(buffer, &value, sizeof value);
  WriteRow(to, buffer, kWhole ? kFloats : count);
}

// --- one rule per optimizer: kSlots of dim floats, what it needs per row, and a vector of columns ------------------

struct Sgd {
  static constexpr int kSlots = 0;
  Sgd(const OptimizerTask& task, float*, const float*) : rate(task.learning_rate) {}
  void Columns(Floats g, Floats& w, Floats*) const { w = w - g * rate; }
  float rate;
};

struct Adagrad {
  static constexpr int kSlots = 1;
  Adagrad(const OptimizerTask& task, float*, const float*) : rate(task.learning_rate), epsilon(task.epsilon) {}
  void Columns(Floats g, Floats& w, Floats* slots) const {
    slots[0] = slots[0] + g * g;
    w = w - (g * rate) / (Sqrt(slots[0]) + epsilon);
  }
  float rate;
  float epsilon;
};

struct AdagradDecay : Adagrad {
  AdagradDecay(const OptimizerTask& task, float* row, const float* grad)
      : Adagrad(task, row, grad), factor(1.0f), least(task.initial) {
    float* period = row + task.slot[1];
    const float last = LoadRelaxed(period);
    decays = task.period > last;
    if (!decays) return;
    factor = static_cast<float>(WholePower(task.decay_rate, static_cast<int64_t>(task.period - last)));
    StoreRelaxed(period, task.period);
  }
  void Columns(Floats g, Floats& w, Floats* slots) const {
    if (decays) {
      const Floats lower = slots[0] * factor;
      slots[0] = lower > Splat(least) ? lower : Splat(least);
    }
    Adagrad::Columns(g, w, slots);
  }
  bool decays;
  float factor;
  float least;
};

struct RowwiseAdagrad {
  static constexpr int kSlots = 0;
  RowwiseAdagrad(const OptimizerTask& task, float* row, const float* grad) {
    constexpr size_t kParts = 16;  // column c is added to partial sum c % 16
    constexpr size_t kVectors = kParts / kFloats;
    Floats sums[kVectors] = {};
    size_t c = 0;
    for (; c + kParts <= task.dim; c += kParts) {
      for (size_t v = 0; v < kVectors; ++v) {
        Floats g;
        std::memcpy(&g, grad + c + v * kFloats, sizeof g);
        sums[v] = sums[v] + g * g;
      }
    }
    alignas(64) float part[kParts];
    std::memcpy(part, sums, sizeof part);
    for (size_t i = 0; c < task.dim; ++c, ++i) part[i] += grad[c] * grad[c];
    for (size_t half = kParts / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) part[i] += part[i + half];
    }
    float* slot = row + task.slot[0];
    const float sum = LoadRelaxed(slot) + part[0] / static_cast<float>(task.dim);
    StoreRelaxed(slot, sum);
    rate = task.learning_rate / (SqrtOne(sum) + task.epsilon);
  }
  void Columns(Floats g, Floats& w, Floats*) const { w = w - g * rate; }
  float rate;
};

struct Adam {
  static constexpr int kSlots = 2;
  Adam(const OptimizerTask& task, float*, const float*)
      : alpha(task.alpha), rest1(task.rest1), rest2(task.rest2), epsilon(task.epsilon) {}
  void Columns(Floats g, Floats& w, Floats* slots) const {
    slots[0] = slots[0] + (g - slots[0]) * rest1;
    slots[1] = slots[1] + (g * g - slots[1]) * rest2;
    w = w - (slots[0] * alpha) / (Sqrt(slots[1]) + epsilon);
  }
  float alpha;
  float rest1;
  float rest2;
  float epsilon;
};

struct AdamW : Adam {
  AdamW(const OptimizerTask& task, float* row, const float* grad)
      : Adam(task, row, grad), decay(task.weight_decay), rate(task.learning_rate) {}
  void Columns(Floats g, Floats& w, Floats* slots) const {
    w = w - w * decay * rate;
    Adam::Columns(g, w, slots);
  }
  float decay;
  float rate;
};

struct LazyAdam : Adam {
  LazyAdam(const OptimizerTask& task, float* row, const float* grad) : Adam(task, row, grad) {
    const float correction1 = Advance(row + task.slot[2], task.rest1);
    const float correction2 = Advance(row + task.slot[3], task.rest2);
    alpha = task.learning_rate * SqrtOne(correction2) / correction1;
  }
  // 1 - beta^t from 1 - beta^(t-1).
  static float Advance(float* slot, float rest) {
    const float before = LoadRelaxed(slot);
    const float after = before + (1.0f - before) * rest;
    StoreRelaxed(slot, after);
    return after;
  }
};

struct Ftrl {
  static constexpr int kSlots = 2;
  Ftrl(const OptimizerTask& task, float*, const float*)
      : rate(task.learning_rate), l1(task.l1), twice_l2(task.twice_l2), twice_shrinkage(task.twice_shrinkage) {}
  void Columns(Floats g, Floats& w, Floats* slots) const {
    const Floats sum = slots[0] + g * g;
    const Floats root = Sqrt(sum);
    const Floats shrunk = g + w * twice_shrinkage;
    slots[1] = slots[1] + (shrunk - (root - Sqrt(slots[0])) / rate * w);
    const Floats quadratic = root / rate + twice_l2;
    const Floats value = (Clamp(slots[1], l1) - slots[1]) / quadratic;
    w = quadratic > Floats{} ? value : Floats{};  // no gradient yet and nothing to divide by
    slots[0] = sum;
  }
  float rate;
  float l1;
  float twice_l2;
  float twice_shrinkage;
};

// --- rows ----------------------------------------------------------------------------------------------------------

template <typename Rule, bool kWhole>
static inline void UpdateColumns(const OptimizerTask& task, const Rule& rule, float* row, const float* grad, size_t c,
                                 size_t count) {
  Floats g{};
  std::memcpy(&g, grad + c, (kWhole ? kFloats : count) * sizeof(float));
  Floats w = Load<kWhole>(row + c, count);
  Floats slots[Rule::kSlots + 1];
  for (int s = 0; s < Rule::kSlots; ++s) slots[s] = Load<kWhole>(row + task.slot[s] + c, count);
  rule.Columns(g, w, slots);
  for (int s = 0; s < Rule::kSlots; ++s) Store<kWhole>(row + task.slot[s] + c, slots[s], count);
  Store<kWhole>(row + c, w, count);
}

static inline void Prefetch(const float* row, size_t bytes) {
  if (row == nullptr) return;
  const char* from = reinterpret_cast<const char*>(row);
  // Rows start anywhere in a line: the last byte may be in one line more.
  for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(from + at, 1);
  __builtin_prefetch(from + bytes - 1, 1);
}

template <typename Rule>
static void Update(const OptimizerTask& task, float* const* rows, const float* grads, size_t n) {
  const size_t dim = task.dim;
  const size_t bytes = task.row_bytes < kMostLines * kLine ? task.row_bytes : kMostLines * kLine;
  for (size_t i = 0; i < n && i < kAhead; ++i) Prefetch(rows[i], bytes);
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) Prefetch(rows[i + kAhead], bytes);
    float* row = rows[i];
    if (row == nullptr) continue;
    const float* grad = grads + i * dim;
    const Rule rule(task, row, grad);
    size_t c = 0;
    for (; c + kFloats <= dim; c += kFloats) UpdateColumns<Rule, true>(task, rule, row, grad, c, kFloats);
    if (c < dim) UpdateColumns<Rule, false>(task, rule, row, grad, c, dim - c);
  }
}

}  // namespace TFCTR_ISA_NAMESPACE

void TFCTR_APPLY(const OptimizerTask& task, float* const* rows, const float* grads, size_t n) {
  using Kind = OptimizerConfig::Kind;
  switch (task.kind) {
    case Kind::kSgd:
      return TFCTR_ISA_NAMESPACE::Update<TFCTR_ISA_NAMESPACE::Sgd>(task, rows, grads, n);
    case Kind::kAdagrad:
      return TFCTR_ISA_NAMESPACE::Update<TFCTR_ISA_NAMESPACE::Adagrad>(task, rows, grads, n);
    case Kind::kRowwiseAdagrad:
      return TFCTR_ISA_NAMESPACE::Update<TFCTR_ISA_NAMESPACE::RowwiseAdagrad>(task, rows, grads, n);
    case Kind::kAdam:
      return TFCTR_ISA_NAMESPACE::Update<TFCTR_ISA_NAMESPACE::Adam>(task, rows, grads, n);
    case Kind::kAdamW:
      return TFCTR_ISA_NAMESPACE::Update<TFCTR_ISA_NAMESPACE::AdamW>(task, rows, grads, n);
    case Kind::kFtrl:
      return TFCTR_ISA_NAMESPACE::Update<TFCTR_ISA_NAMESPACE::Ftrl>(task, rows, grads, n);
    case Kind::kLazyAdam:
      return TFCTR_ISA_NAMESPACE::Update<TFCTR_ISA_NAMESPACE::LazyAdam>(task, rows, grads, n);
    case Kind::kAdagradDecay:
      return TFCTR_ISA_NAMESPACE::Update<TFCTR_ISA_NAMESPACE::AdagradDecay>(task, rows, grads, n);
  }
}

}  // namespace tfctr
