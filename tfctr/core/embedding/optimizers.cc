#include "tfctr/core/embedding/optimizers.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "tfctr/core/embedding/optimizer_task.h"
#include "tfctr/core/storage/relaxed.h"

namespace tfctr {

void ApplyBaseline(const OptimizerTask& task, float* const* rows, const float* grads, size_t n);
void ApplyAvx2(const OptimizerTask& task, float* const* rows, const float* grads, size_t n);
void ApplyAvx512(const OptimizerTask& task, float* const* rows, const float* grads, size_t n);

namespace {

using Kind = OptimizerConfig::Kind;

constexpr Kind kKinds[] = {Kind::kSgd,   Kind::kAdagrad, Kind::kRowwiseAdagrad, Kind::kAdam,
                           Kind::kAdamW, Kind::kFtrl,    Kind::kLazyAdam,       Kind::kAdagradDecay};

bool IsAdam(Kind kind) { return kind == Kind::kAdam || kind == Kind::kAdamW || kind == Kind::kLazyAdam; }
bool IsAdagrad(Kind kind) {
  return kind == Kind::kAdagrad || kind == Kind::kRowwiseAdagrad || kind == Kind::kAdagradDecay;
}

std::string Text(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

Status Wrong(Kind kind, const char* name, const std::string& value, const char* expected) {
  return Status::Invalid(std::string("optimizer ") + OptimizerName(kind) + ": " + name + " is " + value +
                         ", expected " + expected);
}

// Any power of the accumulator. Only learning_rate_power = -0.5 is vectorised; this one is the same code everywhere.
void FtrlAnyPower(const OptimizerTask& task, float* const* rows, const float* grads, size_t n) {
  const float rate = task.learning_rate;
  for (size_t i = 0; i < n; ++i) {
    if (rows[i] == nullptr) continue;
    for (size_t c = 0; c < task.dim; ++c) {
      float* const w = rows[i] + c;
      float* const accumulator = rows[i] + task.slot[0] + c;
      float* const linear = rows[i] + task.slot[1] + c;
      const float g = grads[i * task.dim + c];
      const float before = LoadRelaxed(accumulator);
      const float sum = before + g * g;
      const float root = std::pow(sum, task.power);
      const float value = LoadRelaxed(w);
      const float z = LoadRelaxed(linear) +
                      ((g + value * task.twice_shrinkage) - (root - std::pow(before, task.power)) / rate * value);
      const float quadratic = root / rate + task.twice_l2;
      const float cut = z > task.l1 ? task.l1 : z < -task.l1 ? -task.l1 : z;
      StoreRelaxed(w, quadratic > 0 ? (cut - z) / quadratic : 0.0f);
      StoreRelaxed(linear, z);
      StoreRelaxed(accumulator, sum);
    }
  }
}

Isa IsaInUse() {
  const Result<Isa> isa = ActiveIsa();
  return isa.ok() ? isa.value() : Isa::kBaseline;  // CheckOptimizer has told of it; the bits are the same
}

// 1 - beta^t with beta as float32 has it, the formula's only value that Keras and TensorFlow can have too.
double Correction(double beta, int64_t t) { return 1.0 - WholePower(static_cast<float>(beta), t); }

}  // namespace

OptimizerTask OptimizerTaskOf(const OptimizerConfig& config, const RowLayout& layout, const UpdateStep& step) {
  OptimizerTask task;
  task.kind = config.kind;
  task.dim = static_cast<size_t>(layout.dim());
  task.row_bytes = layout.floats() * sizeof(float);
  for (size_t s = 0; s < layout.slots().size() && s < 4; ++s) task.slot[s] = layout.slot_floats(s);
  task.learning_rate = step.learning_rate;
  task.epsilon = static_cast<float>(config.epsilon);
  task.rest1 = static_cast<float>(1.0 - config.beta1);
  task.rest2 = static_cast<float>(1.0 - config.beta2);
  task.weight_decay = static_cast<float>(config.weight_decay);
  if (config.kind == Kind::kAdam || config.kind == Kind::kAdamW) {
    const int64_t t = step.step + 1;
    task.alpha = static_cast<float>(static_cast<double>(step.learning_rate) * std::sqrt(Correction(config.beta2, t)) /
                                    Correction(config.beta1, t));
  }
  if (config.kind == Kind::kFtrl) {
    task.l1 = static_cast<float>(config.l1);
    float l2 = static_cast<float>(config.l2);
    if (config.beta != 0) l2 += static_cast<float>(config.beta) / (2.0f * step.learning_rate);
    task.twice_l2 = 2.0f * l2;
    task.twice_shrinkage = 2.0f * static_cast<float>(config.l2_shrinkage);
    task.power = static_cast<float>(-config.learning_rate_power);
  }
  if (config.kind == Kind::kAdagradDecay) {
    task.initial = static_cast<float>(config.initial_accumulator);
    task.decay_rate = config.decay_rate;
    task.period = static_cast<float>(step.step / config.decay_steps);
  }
  return task;
}

const char* OptimizerName(OptimizerConfig::Kind kind) {
  switch (kind) {
    case Kind::kSgd:
      return "sgd";
    case Kind::kAdagrad:
      return "adagrad";
    case Kind::kRowwiseAdagrad:
      return "rowwise_adagrad";
    case Kind::kAdam:
      return "adam";
    case Kind::kAdamW:
      return "adamw";
    case Kind::kFtrl:
      return "ftrl";
    case Kind::kLazyAdam:
      return "lazy_adam";
    case Kind::kAdagradDecay:
      return "adagrad_decay";
  }
  return "unknown";
}

Result<OptimizerConfig::Kind> OptimizerKind(const std::string& name) {
  std::string known;
  for (const Kind kind : kKinds) {
    if (name == OptimizerName(kind)) return kind;
    known += std::string(known.empty() ? "" : ", ") + OptimizerName(kind);
  }
  return Status::Invalid("unknown optimizer '" + name + "', expected one of " + known);
}

Status CheckOptimizer(const OptimizerConfig& config) {
  const Kind kind = config.kind;
  const Result<Isa> isa = ActiveIsa();
  if (!isa.ok()) return isa.status();
  // Of the float32 that the inner loops see.
  const auto not_negative = [](double x) { return std::isfinite(static_cast<float>(x)) && x >= 0; };
  const auto is_beta = [](double x) { return x >= 0 && static_cast<float>(x) < 1; };
  if (IsAdagrad(kind) || IsAdam(kind)) {
    // 0 would divide 0 by 0 where no gradient has been seen.
    if (!(not_negative(config.epsilon) && config.epsilon >= std::numeric_limits<float>::min())) {
      return Wrong(kind, "epsilon", Text(config.epsilon), "a finite number of at least 1.2e-38");
    }
  }
  if ((IsAdagrad(kind) || kind == Kind::kFtrl) && !not_negative(config.initial_accumulator)) {
    return Wrong(kind, "initial_accumulator_value", Text(config.initial_accumulator), "a finite number of at least 0");
  }
  if (IsAdam(kind)) {
    if (!is_beta(config.beta1)) return Wrong(kind, "beta_1", Text(config.beta1), "0 <= beta_1 < 1");
    if (!is_beta(config.beta2)) return Wrong(kind, "beta_2", Text(config.beta2), "0 <= beta_2 < 1");
  }
  if (kind == Kind::kAdamW && !not_negative(config.weight_decay)) {
    return Wrong(kind, "weight_decay", Text(config.weight_decay), "a finite number of at least 0");
  }
  if (kind == Kind::kFtrl) {
    if (!not_negative(-config.learning_rate_power)) {
      return Wrong(kind, "learning_rate_power", Text(config.learning_rate_power), "a finite number of at most 0");
    }
    const std::pair<const char*, double> penalties[] = {{"l1_regularization_strength", config.l1},
                                                        {"l2_regularization_strength", config.l2},
                                                        {"l2_shrinkage_regularization_strength", config.l2_shrinkage},
                                                        {"beta", config.beta}};
    for (const auto& [name, value] : penalties) {
      if (!not_negative(value)) return Wrong(kind, name, Text(value), "a finite number of at least 0");
    }
  }
  if (kind == Kind::kAdagradDecay) {
    if (!(config.decay_rate > 0 && config.decay_rate <= 1)) {
      return Wrong(kind, "accumulator_decay_rate", Text(config.decay_rate), "0 < rate <= 1");
    }
    if (config.decay_steps < 1) {
      return Wrong(kind, "accumulator_decay_steps", std::to_string(config.decay_steps), "at least 1 step");
    }
  }
  return Status::Ok();
}

Status CheckStep(const OptimizerConfig& config, const UpdateStep& step) {
  const std::string rate = "the learning rate is " + Text(step.learning_rate);
  if (!std::isfinite(step.learning_rate)) return Status::Invalid(rate + ", expected a finite number");
  if (config.kind == Kind::kFtrl && step.learning_rate <= 0) {
    return Status::Invalid(rate + ", which optimizer ftrl divides by: expected a number above 0");
  }
  if (step.step < 0) return Status::Invalid("the step is " + std::to_string(step.step) + ", expected 0 or more");
  return Status::Ok();
}

std::vector<SlotSpec> SlotsOf(const OptimizerConfig& config, int dim) {
  const float initial = static_cast<float>(config.initial_accumulator);
  switch (config.kind) {
    case Kind::kSgd:
      return {};
    case Kind::kAdagrad:
      return {{"accumulator", dim, initial}};
    case Kind::kRowwiseAdagrad:
      return {{"accumulator", 1, initial}};
    case Kind::kAdam:
    case Kind::kAdamW:
      return {{"momentum", dim, 0.0f}, {"velocity", dim, 0.0f}};
    case Kind::kFtrl:
      return {{"accumulator", dim, initial}, {"linear", dim, 0.0f}};
    case Kind::kLazyAdam:
      return {{"momentum", dim, 0.0f}, {"velocity", dim, 0.0f}, {"correction1", 1, 0.0f}, {"correction2", 1, 0.0f}};
    case Kind::kAdagradDecay:
      return {{"accumulator", dim, initial}, {"period", 1, 0.0f}};
  }
  return {};
}

void ApplyRows(const OptimizerConfig& config, const RowLayout& layout, const UpdateStep& step, float* const* rows,
               const float* grads, size_t n) {
  ApplyRows(config, layout, step, rows, grads, n, IsaInUse());
}

void ApplyRows(const OptimizerConfig& config, const RowLayout& layout, const UpdateStep& step, float* const* rows,
               const float* grads, size_t n, Isa isa) {
  const OptimizerTask task = OptimizerTaskOf(config, layout, step);
  if (task.kind == Kind::kFtrl && task.power != 0.5f) return FtrlAnyPower(task, rows, grads, n);
  // A vector longer than a row is of no use.
  if (isa == Isa::kAvx512 && task.dim >= 16) return ApplyAvx512(task, rows, grads, n);
  if (isa != Isa::kBaseline && task.dim >= 8) return ApplyAvx2(task, rows, grads, n);
  return ApplyBaseline(task, rows, grads, n);
}

}  // namespace tfctr
