// What ApplyRows hands to the kernel of an instruction set: the hyper-parameters of one call as the floats that the
// inner loops use. Internal to optimizers*.
// Thread-safety: a plain value.
#ifndef TFCTR_CORE_EMBEDDING_OPTIMIZER_TASK_H_
#define TFCTR_CORE_EMBEDDING_OPTIMIZER_TASK_H_

#include <cstddef>
#include <cstdint>

#include "tfctr/core/embedding/optimizers.h"

namespace tfctr {

struct OptimizerTask {
  OptimizerConfig::Kind kind = OptimizerConfig::Kind::kSgd;
  size_t dim = 0;
  size_t row_bytes = 0;           // value and slots, to prefetch
  size_t slot[4] = {0, 0, 0, 0};  // where the slots begin, in floats
  float learning_rate = 0;
  float epsilon = 0;
  float alpha = 0;  // adam, adamw: the learning rate with its bias correction
  float rest1 = 0;  // 1 - beta1
  float rest2 = 0;  // 1 - beta2
  float weight_decay = 0;
  float l1 = 0;
  float twice_l2 = 0;
  float twice_shrinkage = 0;
  float power = 0.5f;  // ftrl: -learning_rate_power
  float initial = 0;   // adagrad_decay: the least accumulator
  double decay_rate = 1;
  float period = 0;  // adagrad_decay: of this step
};

// The task of one call.
OptimizerTask OptimizerTaskOf(const OptimizerConfig& config, const RowLayout& layout, const UpdateStep& step);

// base^exponent for exponent >= 0, by repeated squaring: the same bits everywhere. `static`: compiled into files of
// several instruction sets.
static inline double WholePower(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace tfctr

#endif  // TFCTR_CORE_EMBEDDING_OPTIMIZER_TASK_H_
