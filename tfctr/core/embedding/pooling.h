// Combining embedding rows, as tf.nn.embedding_lookup and embedding_lookup_sparse do, and the gradients of it.
//
//   max_norm   a row v becomes v * max_norm / max(|v|, max_norm) first (|v| the L2 norm)
//   sum        y = sum of w_i * v_i;  mean: y / sum of w_i;  sqrtn: y / sqrt(sum of w_i^2);  w_i = 1 without weights
// A row of no ids, and one whose divisor is 0, is zeros. A null row pointer stands for the default value, which takes
// part like any row; its gradient is computed and then finds no row to update.
//
// Terms are added in the order of the ids, in float32: equal to stock TensorFlow within rounding, not to the bit, as
// stock adds them in blocks. Thread-safety: pure functions. Cost: bound by reading the rows; prefetch them before.
#ifndef TFCTR_CORE_EMBEDDING_POOLING_H_
#define TFCTR_CORE_EMBEDDING_POOLING_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

enum class Combiner : int { kNone, kSum, kMean, kSqrtn };

// "", "sum", "mean", "sqrtn"; kInvalid for another word.
TFCTR_EXPORT Result<Combiner> ParseCombiner(const std::string& text);

struct Pooling {
  Combiner combiner = Combiner::kNone;
  int dim = 0;
  float max_norm = -1.0f;  // negative: no limit

  bool limited() const { return max_norm >= 0.0f; }
};

// One row per id: out[i] = row i.
TFCTR_EXPORT void CopyRows(const Pooling& pooling, const float* const* rows, size_t n, const float* fallback,
                           float* out);

// Combines row by row; rows of ids may come in several pieces, so that each piece is found and prefetched just before.
class TFCTR_EXPORT Pooler {
 public:
  // The output rows are [splits[0] .. splits[1]), ...: `splits` begins at the first output row that is computed here,
  // `rows` of them, and `out` is [rows, dim]. `weights` (null: none) are indexed as the ids: by splits.
  Pooler(const Pooling& pooling, const int64_t* splits, size_t rows, const float* weights, const float* fallback,
         float* out);
  // The next n rows, in the order of the ids.
  void Add(const float* const* rows, size_t n);
  // After the last piece.
  void Finish();

 private:
  void Close();

  const Pooling pooling_;
  const int64_t* const splits_;
  const size_t rows_;
  const float* const weights_;
  const float* const fallback_;
  float* const out_;
  size_t row_ = 0;  // the output row that is being added to
  int64_t at_ = 0;  // the next id
  float divisor_ = 0.0f;
};

// Gradient of CopyRows (with a limit) for n ids: grads and out are [n, dim].
TFCTR_EXPORT void CopyRowsGradient(const Pooling& pooling, const float* const* rows, size_t n, const float* fallback,
                                   const float* grads, float* out);

// Gradient of a Pooler. `rows` are of the ids splits[0] ..., needed with weight_grads or a limit, else null. `grads` is
// [output rows, dim]; writes one gradient per id to `out` ([ids, dim], from splits[0] on) and, where wanted, adds each
// weight's to weight_grads (indexed as the weights).
TFCTR_EXPORT void PoolGradient(const Pooling& pooling, const int64_t* splits, size_t output_rows,
                               const float* const* rows, const float* weights, const float* fallback,
                               const float* grads, float* out, float* weight_grads);

}  // namespace tfctr

#endif  // TFCTR_CORE_EMBEDDING_POOLING_H_
