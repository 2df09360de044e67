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

// Floats of a row that other threads can reach. A vector may be accessed as its floats.
static inline Floats Load(const float* from) {
  Floats value;
  ReadRow(reinterpret_cast<float*>(&value), from, kFloats);
  return value;
}
static inline void Store(float* to, Floats value) { WriteRow(to, reinterpret_cast<const float*>(&value), kFloats); }

// The first `count` < kFloats only; the others are 0. No call of memcpy for a few bytes.
static inline Floats LoadPart(const float* from, size_t count) {
  Floats value{};
#pragma GCC unroll 16
  for (size_t i = 0; i < kFloats; ++i) {
    if (i < count) value[i] = LoadRelaxed(from + i);
  }
  return value;
}
static inline void StorePart(float* to, Floats value, size_t count) {
#pragma GCC unroll 16
  for (size_t i = 0; i < kFloats; ++i) {
    if (i < count) StoreRelaxed(to + i, value[i]);
  }
}

// --- one rule per optimizer: kSlots of dim floats, what it needs per row, and a vector of columns ------------------

struct Sgd {
  static constexpr int kSlots = 0;
  Sgd(const OptimizerTask& task, float*, const float*) : rate(task.learning_rate) {}
  void Update(Floats g, Floats& w, Floats*) const { w = w - g * rate; }
  float rate;
};

struct Adagrad {
  static constexpr int kSlots = 1;
  Adagrad(const OptimizerTask& task, float*, const float*) : rate(task.learning_rate), epsilon(task.epsilon) {}
  void Update(Floats g, Floats& w, Floats* slots) const {
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
  void Update(Floats g, Floats& w, Floats* slots) const {
    if (decays) {
      const Floats lower = slots[0] * factor;
      slots[0] = lower > Splat(least) ? lower : Splat(least);
    }
    Adagrad::Update(g, w, slots);
  }
  bool decays;
  float factor;
  float least;
};

struct RowwiseAdagrad {
  static constexpr int kSlots = 0;
  RowwiseAdagrad(const OptimizerTask& task, float* row, const float* grad) {
    constexpr size_t kVectors = 16 / kFloats;  // column c is added to partial sum c % 16
    Floats sums[kVectors] = {};
    size_t c = 0;
    for (; c + 16 <= task.dim; c += 16) {
      for (size_t i = 0; i < kVectors; ++i) AddSquares(grad + c + i * kFloats, &sums[i]);
    }
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v, c += kFloats) {
      if (c + kFloats <= task.dim) {
        AddSquares(grad + c, &sums[v]);
      } else if (c < task.dim) {
        const Floats g = LoadPart(grad + c, task.dim - c);
        sums[v] = sums[v] + g * g;
      }
    }
    // Upper half to lower half, until one is left.
    for (size_t half = kVectors / 2; half > 0; half /= 2) {
      for (size_t v = 0; v < half; ++v) sums[v] = sums[v] + sums[v + half];
    }
    float part[kFloats];
    std::memcpy(part, sums, sizeof part);
    for (size_t half = kFloats / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) part[i] += part[i + half];
    }
    float* slot = row + task.slot[0];
    const float sum = LoadRelaxed(slot) + part[0] / static_cast<float>(task.dim);
    StoreRelaxed(slot, sum);
    rate = task.learning_rate / (SqrtOne(sum) + task.epsilon);
  }
  static inline void AddSquares(const float* grad, Floats* sum) {
    Floats g;
    std::memcpy(&g, grad, sizeof g);
    *sum = *sum + g * g;
  }
  void Update(Floats g, Floats& w, Floats*) const { w = w - g * rate; }
  float rate;
};

struct Adam {
  static constexpr int kSlots = 2;
  Adam(const OptimizerTask& task, float*, const float*)
      : alpha(task.alpha), rest1(task.rest1), rest2(task.rest2), epsilon(task.epsilon) {}
  void Update(Floats g, Floats& w, Floats* slots) const {
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
  void Update(Floats g, Floats& w, Floats* slots) const {
    w = w - w * decay * rate;
    Adam::Update(g, w, slots);
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
  void Update(Floats g, Floats& w, Floats* slots) const {
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

// Value and slots of one vector of columns.
template <typename Rule>
struct Columns {
  Floats w;
  Floats slots[Rule::kSlots + 1];

  static Columns Updated(const OptimizerTask& task, const Rule& rule, const float* row, const float* grad, size_t c) {
    Columns columns;
    Floats g;
    std::memcpy(&g, grad + c, sizeof g);
    columns.w = Load(row + c);
    for (int s = 0; s < Rule::kSlots; ++s) columns.slots[s] = Load(row + task.slot[s] + c);
    rule.Update(g, columns.w, columns.slots);
    return columns;
  }
  void StoreAt(const OptimizerTask& task, float* row, size_t c) const {
    for (int s = 0; s < Rule::kSlots; ++s) Store(row + task.slot[s] + c, slots[s]);
    Store(row + c, w);
  }
};

// A row of fewer columns than a vector has.
template <typename Rule>
static void UpdateNarrow(const OptimizerTask& task, const Rule& rule, float* row, const float* grad) {
  const size_t count = task.dim;
  const Floats g = LoadPart(grad, count);
  Columns<Rule> columns;
  columns.w = LoadPart(row, count);
  for (int s = 0; s < Rule::kSlots; ++s) columns.slots[s] = LoadPart(row + task.slot[s], count);
  rule.Update(g, columns.w, columns.slots);
  for (int s = 0; s < Rule::kSlots; ++s) StorePart(row + task.slot[s], columns.slots[s], count);
  StorePart(row, columns.w, count);
}

template <typename Rule>
static inline void UpdateRow(const OptimizerTask& task, const Rule& rule, float* row, const float* grad) {
  const size_t whole = task.dim / kFloats * kFloats;
  if (whole == task.dim) {
    for (size_t c = 0; c < whole; c += kFloats) Columns<Rule>::Updated(task, rule, row, grad, c).StoreAt(task, row, c);
  } else if (whole > 0) {
    // The last vector overlaps the one before: it is computed from the values before the update and stored at the end,
    // so that the columns they share get the same values twice.
    const size_t last = task.dim - kFloats;
    const Columns<Rule> end = Columns<Rule>::Updated(task, rule, row, grad, last);
    for (size_t c = 0; c < whole; c += kFloats) Columns<Rule>::Updated(task, rule, row, grad, c).StoreAt(task, row, c);
    end.StoreAt(task, row, last);
  } else {
    UpdateNarrow(task, rule, row, grad);
  }
}

static inline void Prefetch(const float* row, size_t bytes) {
  if (row == nullptr) return;
  const char* from = reinterpret_cast<const char*>(row);
  // Rows start anywhere in a line: the last byte may be in one line more.
  for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(from + at, 1);
  __builtin_prefetch(from + bytes - 1, 1);
}

template <typename Rule>
static void UpdateRows(const OptimizerTask& task, float* const* rows, const float* grads, size_t n) {
  const size_t dim = task.dim;
  const size_t bytes = task.row_bytes < kMostLines * kLine ? task.row_bytes : kMostLines * kLine;
  for (size_t i = 0; i < n && i < kAhead; ++i) Prefetch(rows[i], bytes);
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) Prefetch(rows[i + kAhead], bytes);
    float* row = rows[i];
    if (row == nullptr) continue;
    const float* grad = grads + i * dim;
    const Rule rule(task, row, grad);
    UpdateRow(task, rule, row, grad);
  }
}

}  // namespace TFCTR_ISA_NAMESPACE

void TFCTR_APPLY(const OptimizerTask& task, float* const* rows, const float* grads, size_t n) {
  using Kind = OptimizerConfig::Kind;
  switch (task.kind) {
    case Kind::kSgd:
      return TFCTR_ISA_NAMESPACE::UpdateRows<TFCTR_ISA_NAMESPACE::Sgd>(task, rows, grads, n);
    case Kind::kAdagrad:
      return TFCTR_ISA_NAMESPACE::UpdateRows<TFCTR_ISA_NAMESPACE::Adagrad>(task, rows, grads, n);
    case Kind::kRowwiseAdagrad:
      return TFCTR_ISA_NAMESPACE::UpdateRows<TFCTR_ISA_NAMESPACE::RowwiseAdagrad>(task, rows, grads, n);
    case Kind::kAdam:
      return TFCTR_ISA_NAMESPACE::UpdateRows<TFCTR_ISA_NAMESPACE::Adam>(task, rows, grads, n);
    case Kind::kAdamW:
      return TFCTR_ISA_NAMESPACE::UpdateRows<TFCTR_ISA_NAMESPACE::AdamW>(task, rows, grads, n);
    case Kind::kFtrl:
      return TFCTR_ISA_NAMESPACE::UpdateRows<TFCTR_ISA_NAMESPACE::Ftrl>(task, rows, grads, n);
    case Kind::kLazyAdam:
      return TFCTR_ISA_NAMESPACE::UpdateRows<TFCTR_ISA_NAMESPACE::LazyAdam>(task, rows, grads, n);
    case Kind::kAdagradDecay:
      return TFCTR_ISA_NAMESPACE::UpdateRows<TFCTR_ISA_NAMESPACE::AdagradDecay>(task, rows, grads, n);
  }
}

}  // namespace tfctr
