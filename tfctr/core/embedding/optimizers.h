// The optimizers of embedding rows: each updates the value and the slots of the rows it is given, nothing else.
// w value, g gradient (summed per key), lr learning rate; all in float32, every operation rounded once, no contraction.
//
//   sgd              w -= lr*g
//   adagrad          a += g^2;  w -= (lr*g) / (sqrt(a) + epsilon)            tf.raw_ops.ResourceSparseApplyAdagradV2
//   rowwise_adagrad  s += mean of g^2 over the row;  w -= (lr / (sqrt(s) + epsilon)) * g        one float per row
//   adam             m += (g-m)*(1-beta1);  v += (g^2-v)*(1-beta2);  w -= (m*alpha) / (sqrt(v) + epsilon),
//                    alpha = lr * sqrt(1-beta2^t) / (1-beta1^t), t = step + 1: the model-wide step         Keras 3 Adam
//   adamw            w -= (w*weight_decay)*lr, then adam                                                  Keras 3 AdamW
//   ftrl             FTRL-proximal: n = a + g^2;  z += g' - (n^-p - a^-p)/lr * w;  a = n;
//                    w = |z| > l1 ? (sign(z)*l1 - z) / (n^-p/lr + 2*l2') : 0,
//                    p = learning_rate_power, g' = g + 2*l2_shrinkage*w, l2' = l2 + beta/(2*lr)
//                                                                 tf.raw_ops.ResourceSparseApplyFtrlV2, Keras 3 Ftrl
//   lazy_adam        adam whose t is the number of updates of this row: a row seen for the first time at step 1e6 gets
//                    the bias correction of a first step. Per row 1-beta1^t and 1-beta2^t are kept
//                    (c += (1-c)*(1-beta)), two floats.
//   adagrad_decay    adagrad whose accumulator is multiplied by decay_rate once per decay_steps model-wide steps, never
//                    below its initial value; a row catches up on missed periods when it is updated. One more float
//                    per row: the period of its last update.
//
// All are lazy in one sense: a row whose key is not in the batch is not touched. Stock Keras decays m, v and (adamw) w
// of every row in every step; rows that are in every batch agree with it. Agreement
// (tests/embedding/test_optimizers.py): sgd, adagrad and, at power -0.5 and dim > 1, ftrl have the bits of the stock
// sparse ops named above; sgd, adagrad, adam, adamw and ftrl agree with Keras 3 within 1e-5 relative or 1e-6 absolute
// after 30 updates. Keras has epsilon inside the root of adagrad, and beta^t in float32, where we take it in float64
// (of beta rounded to float32).
//
// Thread-safety: pure functions. Two calls may update one row at one time (Hogwild: floats are never torn, an update
// can be lost); rows within one call must be distinct. Cost: rows are prefetched, so memory is what counts: at dim 16
// with AVX2, rows in cache take 4-17 ns, random rows of a table of 2 GB 35-130 ns (Zen 3, one core of a busy machine;
// benchmarks/embedding/rows_bench). The same bits on every instruction set.
#ifndef TFCTR_CORE_EMBEDDING_OPTIMIZERS_H_
#define TFCTR_CORE_EMBEDDING_OPTIMIZERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/isa.h"
#include "tfctr/core/storage/row_layout.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct OptimizerConfig {
  enum class Kind : int {
    kSgd,
    kAdagrad,
    kRowwiseAdagrad,
    kAdam,
    kAdamW,
    kFtrl,
    kLazyAdam,
    kAdagradDecay,
  };
  Kind kind = Kind::kSgd;
  double epsilon = 1e-7;              // adagrad*, adam*
  double initial_accumulator = 0.1;   // adagrad*, ftrl
  double beta1 = 0.9;                 // adam*
  double beta2 = 0.999;               // adam*
  double weight_decay = 0.004;        // adamw
  double learning_rate_power = -0.5;  // ftrl, <= 0
  double l1 = 0.0;                    // ftrl
  double l2 = 0.0;                    // ftrl
  double l2_shrinkage = 0.0;          // ftrl
  double beta = 0.0;                  // ftrl
  double decay_rate = 0.9;            // adagrad_decay
  int64_t decay_steps = 100000;       // adagrad_decay
};

// "sgd", "adagrad", "rowwise_adagrad", "adam", "adamw", "ftrl", "lazy_adam", "adagrad_decay".
TFCTR_EXPORT const char* OptimizerName(OptimizerConfig::Kind kind);
// kInvalid, with the names there are, for another name.
TFCTR_EXPORT Result<OptimizerConfig::Kind> OptimizerKind(const std::string& name);

// kInvalid, naming optimizer, hyper-parameter and value, where one that this kind uses is out of its range.
TFCTR_EXPORT Status CheckOptimizer(const OptimizerConfig& config);

// The slots that the kind keeps, in the order of the row layout:
//   adagrad: accumulator; rowwise_adagrad: accumulator (width 1); adam, adamw: momentum, velocity;
//   ftrl: accumulator, linear; lazy_adam: momentum, velocity, correction1, correction2 (width 1);
//   adagrad_decay: accumulator, period (width 1).
TFCTR_EXPORT std::vector<SlotSpec> SlotsOf(const OptimizerConfig& config, int dim);

struct UpdateStep {
  float learning_rate = 0.0f;
  int64_t step = 0;  // model-wide, before this update: 0 in the first one, as optimizer.iterations
};

// kInvalid where an update with this step would ruin every row that it touches: a learning rate that is not finite, 0
// or below with ftrl (it is divided by), or a step below 0.
TFCTR_EXPORT Status CheckStep(const OptimizerConfig& config, const UpdateStep& step);

// Updates rows[i] with grads[i*dim .. i*dim+dim). A null row is skipped (its key has no row any more). `layout` must be
// that of SlotsOf(config, dim).
TFCTR_EXPORT void ApplyRows(const OptimizerConfig& config, const RowLayout& layout, const UpdateStep& step,
                            float* const* rows, const float* grads, size_t n);
// With the kernel of one instruction set, which this CPU must support: for tests.
TFCTR_EXPORT void ApplyRows(const OptimizerConfig& config, const RowLayout& layout, const UpdateStep& step,
                            float* const* rows, const float* grads, size_t n, Isa isa);

}  // namespace tfctr

#endif  // TFCTR_CORE_EMBEDDING_OPTIMIZERS_H_
