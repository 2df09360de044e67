#include "tfctr/core/embedding/pooling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tfctr/core/storage/relaxed.h"

namespace tfctr {
namespace {

constexpr size_t kAhead = 8;  // rows that are prefetched before their turn

inline const float* RowOr(const float* row, const float* fallback) { return row != nullptr ? row : fallback; }

inline void PrefetchRow(const float* row, int dim) {
  if (row == nullptr) return;
  const char* at = reinterpret_cast<const char*>(row);
  const char* const end = at + static_cast<size_t>(std::min(dim, 64)) * sizeof(float);
  for (; at < end; at += 64) __builtin_prefetch(at);
}

template <typename Width>
inline void CopyPlain(const float* const* rows, size_t n, const float* fallback, Width dim, float* out) {
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) PrefetchRow(rows[i + kAhead], static_cast<int>(dim));
    ReadRow(out + i * dim, RowOr(rows[i], fallback), dim);
  }
}

// max_norm / max(|v|, max_norm) is applied as stock does: v * max_norm, then the division.
inline float LargerNorm(const float* row, int dim, float max_norm) {
  float squares = 0.0f;
  for (int c = 0; c < dim; ++c) {
    const float value = LoadRelaxed(row + c);
    squares += value * value;
  }
  return std::max(std::sqrt(squares), max_norm);
}

inline void Limited(const float* row, int dim, float max_norm, float* out) {
  const float norm = LargerNorm(row, dim, max_norm);
  for (int c = 0; c < dim; ++c) out[c] = norm > 0.0f ? LoadRelaxed(row + c) * max_norm / norm : 0.0f;
}

// Gradient of Limited at `row`; `out` may be `grad`.
inline void LimitedGradient(const float* row, int dim, float max_norm, const float* grad, float* out) {
  float squares = 0.0f;
  float product = 0.0f;
  for (int c = 0; c < dim; ++c) {
    const float value = LoadRelaxed(row + c);
    squares += value * value;
    product += value * grad[c];
  }
  const float norm = std::sqrt(squares);
  if (norm < max_norm || norm == 0.0f) {  // nothing was scaled
    if (out != grad) std::copy_n(grad, dim, out);
    return;
  }
  const float scale = max_norm / norm;
  const float along = scale * product / squares;
  for (int c = 0; c < dim; ++c) out[c] = scale * grad[c] - along * LoadRelaxed(row + c);
}

// What w contributes to the divisor of a row.
inline float DivisorTerm(Combiner combiner, float weight) {
  return combiner == Combiner::kSqrtn ? weight * weight : weight;
}

inline float Divisor(Combiner combiner, float terms) {
  if (combiner == Combiner::kSum) return 1.0f;
  return combiner == Combiner::kSqrtn ? std::sqrt(terms) : terms;
}

}  // namespace

Result<Combiner> ParseCombiner(const std::string& text) {
  if (text.empty()) return Combiner::kNone;
  if (text == "sum") return Combiner::kSum;
  if (text == "mean") return Combiner::kMean;
  if (text == "sqrtn") return Combiner::kSqrtn;
  return Status::Invalid("combiner '" + text + "'; expected sum, mean or sqrtn");
}

void CopyRows(const Pooling& pooling, const float* const* rows, size_t n, const float* fallback, float* out) {
  const size_t dim = static_cast<size_t>(pooling.dim);
  if (pooling.limited()) {
    for (size_t i = 0; i < n; ++i) Limited(RowOr(rows[i], fallback), pooling.dim, pooling.max_norm, out + i * dim);
    return;
  }
  switch (dim) {  // a width that the compiler knows is copied in a few instructions
    case 4:
      return CopyPlain(rows, n, fallback, std::integral_constant<size_t, 4>(), out);
    case 8:
      return CopyPlain(rows, n, fallback, std::integral_constant<size_t, 8>(), out);
    case 16:
      return CopyPlain(rows, n, fallback, std::integral_constant<size_t, 16>(), out);
    case 32:
      return CopyPlain(rows, n, fallback, std::integral_constant<size_t, 32>(), out);
    case 64:
      return CopyPlain(rows, n, fallback, std::integral_constant<size_t, 64>(), out);
    default:
      return CopyPlain(rows, n, fallback, dim, out);
  }
}

Pooler::Pooler(const Pooling& pooling, const int64_t* splits, size_t rows, const float* weights, const float* fallback,
               float* out)
    : pooling_(pooling),
      splits_(splits),
      rows_(rows),
      weights_(weights),
      fallback_(fallback),
      out_(out),
      at_(splits[0]) {
  std::memset(out, 0, rows * static_cast<size_t>(pooling.dim) * sizeof(float));
}

void Pooler::Add(const float* const* rows, size_t n) {
  const int dim = pooling_.dim;
  std::vector<float> limited(pooling_.limited() ? static_cast<size_t>(dim) : 0);
  for (size_t i = 0; i < n; ++i, ++at_) {
    while (at_ == splits_[row_ + 1]) Close();
    if (i + kAhead < n) PrefetchRow(rows[i + kAhead], dim);
    const float* row = RowOr(rows[i], fallback_);
    if (pooling_.limited()) {
      Limited(row, dim, pooling_.max_norm, limited.data());
      row = limited.data();
    }
    float* out = out_ + row_ * static_cast<size_t>(dim);
    if (weights_ == nullptr) {
      for (int c = 0; c < dim; ++c) out[c] += LoadRelaxed(row + c);
      divisor_ += 1.0f;
    } else {
      const float weight = weights_[at_];
      for (int c = 0; c < dim; ++c) out[c] += weight * LoadRelaxed(row + c);
      divisor_ += DivisorTerm(pooling_.combiner, weight);
    }
  }
}

void Pooler::Close() {
  if (pooling_.combiner != Combiner::kSum) {
    const float divisor = Divisor(pooling_.combiner, divisor_);
    float* out = out_ + row_ * static_cast<size_t>(pooling_.dim);
    for (int c = 0; c < pooling_.dim; ++c) out[c] = divisor == 0.0f ? 0.0f : out[c] / divisor;
  }
  divisor_ = 0.0f;
  ++row_;
}

void Pooler::Finish() {
  while (row_ < rows_) Close();
}

void CopyRowsGradient(const Pooling& pooling, const float* const* rows, size_t n, const float* fallback,
                      const float* grads, float* out) {
  const size_t dim = static_cast<size_t>(pooling.dim);
  for (size_t i = 0; i < n; ++i) {
    LimitedGradient(RowOr(rows[i], fallback), pooling.dim, pooling.max_norm, grads + i * dim, out + i * dim);
  }
}

namespace {

// The weights' gradients of one output row. y = s / d, with s the sum and d the divisor:
// sum: g.v_i;  mean: (g.v_i - g.y) / d;  sqrtn: g.v_i / d - w_i * (g.y) / d^2. Zeros where d is 0.
void WeightGradients(const Pooling& pooling, const float* const* rows, size_t n, const float* weights, float divisor,
                     const float* fallback, const float* grad, float* weight_grads) {
  const int dim = pooling.dim;
  std::vector<float> limited(pooling.limited() ? static_cast<size_t>(dim) : 0);
  std::vector<float> along(n);  // g . v_i
  float total = 0.0f;           // g . s
  for (size_t i = 0; i < n; ++i) {
    const float* row = RowOr(rows[i], fallback);
    if (pooling.limited()) {
      Limited(row, dim, pooling.max_norm, limited.data());
      row = limited.data();
    }
    for (int c = 0; c < dim; ++c) along[i] += grad[c] * LoadRelaxed(row + c);
    total += weights[i] * along[i];
  }
  for (size_t i = 0; i < n; ++i) {
    float gradient = along[i];
    if (pooling.combiner == Combiner::kMean) gradient = (along[i] - total / divisor) / divisor;
    if (pooling.combiner == Combiner::kSqrtn) {
      gradient = along[i] / divisor - weights[i] * (total / divisor) / (divisor * divisor);
    }
    weight_grads[i] += divisor == 0.0f ? 0.0f : gradient;
  }
}

}  // namespace

void PoolGradient(const Pooling& pooling, const int64_t* splits, size_t output_rows, const float* const* rows,
                  const float* weights, const float* fallback, const float* grads, float* out, float* weight_grads) {
  const size_t dim = static_cast<size_t>(pooling.dim);
  for (size_t r = 0; r < output_rows; ++r) {
    const size_t begin = static_cast<size_t>(splits[r] - splits[0]);
    const size_t n = static_cast<size_t>(splits[r + 1] - splits[r]);
    const float* grad = grads + r * dim;
    const float* mine = weights == nullptr ? nullptr : weights + splits[r];
    float terms = weights == nullptr ? static_cast<float>(n) : 0.0f;
    for (size_t i = 0; mine != nullptr && i < n; ++i) terms += DivisorTerm(pooling.combiner, mine[i]);
    const float divisor = Divisor(pooling.combiner, terms);
    for (size_t i = 0; i < n; ++i) {
      float* to = out + (begin + i) * dim;
      const float weight = mine == nullptr ? 1.0f : mine[i];
      for (size_t c = 0; c < dim; ++c) to[c] = divisor == 0.0f ? 0.0f : grad[c] / divisor * weight;
      if (pooling.limited()) LimitedGradient(RowOr(rows[begin + i], fallback), pooling.dim, pooling.max_norm, to, to);
    }
    if (weight_grads != nullptr) {
      WeightGradients(pooling, rows + begin, n, mine, divisor, fallback, grad, weight_grads + splits[r]);
    }
  }
}

}  // namespace tfctr
