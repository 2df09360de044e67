// The optimizers against their formulas in double, equal bits on every instruction set, and that nothing but the rows
// given is touched. tests/embedding/ compares them with TensorFlow and Keras.
#include "tfctr/core/embedding/optimizers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tfctr/core/storage/test_util.h"

// The lanes of the AVX-512 form, run on any CPU.
#pragma GCC diagnostic ignored "-Wpsabi"
#define TFCTR_APPLY ApplyWideLanes
#define TFCTR_ISA_NAMESPACE isa_wide_lanes
#define TFCTR_VECTOR_BYTES 64
#include "tfctr/core/embedding/optimizers_impl.h"

namespace tfctr {
namespace {

using Kind = OptimizerConfig::Kind;

constexpr float kCanary = -12345.0f;
constexpr size_t kRows = 37;

// Every kind, with hyper-parameters that make every term count.
std::vector<OptimizerConfig> Configs() {
  std::vector<OptimizerConfig> configs;
  for (const char* name :
       {"sgd", "adagrad", "rowwise_adagrad", "adam", "adamw", "ftrl", "lazy_adam", "adagrad_decay"}) {
    OptimizerConfig config;
    config.kind = OptimizerKind(name).value();
    CHECK_EQ(std::string(OptimizerName(config.kind)), name);
    config.weight_decay = 0.05;
    config.decay_steps = 3;
    configs.push_back(config);
    if (config.kind == Kind::kFtrl) {
      config.l1 = 0.01;
      config.l2 = 0.02;
      config.l2_shrinkage = 0.03;
      config.beta = 0.5;
      configs.push_back(config);
      config.learning_rate_power = -0.7;
      configs.push_back(config);
    }
  }
  return configs;
}

RowLayout LayoutOf(const OptimizerConfig& config, int dim) {
  Result<RowLayout> layout = RowLayout::Make(dim, SlotsOf(config, dim), true, true, true);
  CHECK_OK(layout.status());
  return layout.Take();
}

// Rows as a table lays them out, in one block, with a canary where the metadata are and behind the last row.
struct Rows {
  RowLayout layout;
  std::vector<double> memory;  // 8-aligned
  std::vector<float*> row;

  Rows(const RowLayout& of, size_t count) : layout(of), memory((of.stride() * count + 15) / 8) {
    float* all = reinterpret_cast<float*>(memory.data());
    std::fill(all, all + memory.size() * 2, kCanary);
    std::mt19937 random(11);
    std::uniform_real_distribution<float> values(-0.5f, 0.5f);
    for (size_t i = 0; i < count; ++i) {
      float* at = all + i * of.stride() / sizeof(float);
      row.push_back(at);
      for (int c = 0; c < of.dim(); ++c) at[c] = values(random);
      for (size_t s = 0; s < of.slots().size(); ++s) {
        const SlotSpec& slot = of.slots()[s];
        std::fill(of.slot(at, s), of.slot(at, s) + slot.width, slot.initial);
      }
    }
  }
  bool operator==(const Rows& other) const {
    return std::memcmp(memory.data(), other.memory.data(), memory.size() * sizeof(double)) == 0;
  }
  void CheckCanaries() const {
    const float* all = reinterpret_cast<const float*>(memory.data());
    for (float* at : row) {
      for (size_t f = layout.floats(); f < layout.stride() / sizeof(float); ++f) CHECK_EQ(at[f], kCanary);
    }
    CHECK_EQ(all[memory.size() * 2 - 1], kCanary);
  }
};

std::vector<float> Gradients(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values(0.0f, 0.3f);
  std::vector<float> grads(count);
  for (float& g : grads) g = random() % 8 == 0 ? 0.0f : values(random);
  return grads;
}

// The formulas of optimizers.h, in double.
struct Reference {
  OptimizerConfig config;
  std::vector<double> w, a, m, v, z;
  double row_sum;
  int64_t updates = 0;
  int64_t period = 0;

  Reference(const OptimizerConfig& of, const float* values, size_t dim)
      : config(of),
        w(values, values + dim),
        a(dim, static_cast<float>(of.initial_accumulator)),
        m(dim),
        v(dim),
        z(dim),
        row_sum(static_cast<float>(of.initial_accumulator)) {}

  void Adam(size_t c, double g, double lr, int64_t t) {
    // Keras takes powers of the float32; lazy_adam takes none.
    const bool lazy = config.kind == Kind::kLazyAdam;
    const double beta1 = lazy ? config.beta1 : static_cast<float>(config.beta1);
    const double beta2 = lazy ? config.beta2 : static_cast<float>(config.beta2);
    m[c] += (g - m[c]) * (1 - config.beta1);
    v[c] += (g * g - v[c]) * (1 - config.beta2);
    const double alpha =
        lr * std::sqrt(1 - std::pow(beta2, static_cast<double>(t))) / (1 - std::pow(beta1, static_cast<double>(t)));
    w[c] -= alpha * m[c] / (std::sqrt(v[c]) + config.epsilon);
  }

  void Ftrl(size_t c, double g, double lr) {
    const double p = -config.learning_rate_power;
    const double sum = a[c] + g * g;
    z[c] += g + 2 * config.l2_shrinkage * w[c] - (std::pow(sum, p) - std::pow(a[c], p)) / lr * w[c];
    a[c] = sum;
    const double quadratic = std::pow(sum, p) / lr + 2 * (config.l2 + config.beta / (2 * lr));
    w[c] = std::fabs(z[c]) > config.l1 ? (std::copysign(config.l1, z[c]) - z[c]) / quadratic : 0.0;
  }

  void Step(const float* grad, double lr, int64_t step) {
    ++updates;
    double mean = 0;
    for (size_t c = 0; c < w.size(); ++c) mean += double{grad[c]} * grad[c] / static_cast<double>(w.size());
    row_sum += mean;
    for (size_t c = 0; c < w.size(); ++c) {
      const double g = grad[c];
      switch (config.kind) {
        case Kind::kSgd:
          w[c] -= lr * g;
          break;
        case Kind::kAdagradDecay:
          for (int64_t p = period; p < step / config.decay_steps; ++p) a[c] *= config.decay_rate;
          a[c] = std::max(a[c], config.initial_accumulator);
          [[fallthrough]];
        case Kind::kAdagrad:
          a[c] += g * g;
          w[c] -= lr * g / (std::sqrt(a[c]) + config.epsilon);
          break;
        case Kind::kRowwiseAdagrad:
          w[c] -= lr * g / (std::sqrt(row_sum) + config.epsilon);
          break;
        case Kind::kAdamW:
          w[c] -= w[c] * config.weight_decay * lr;
          [[fallthrough]];
        case Kind::kAdam:
          Adam(c, g, lr, step + 1);
          break;
        case Kind::kLazyAdam:
          Adam(c, g, lr, updates);
          break;
        case Kind::kFtrl:
          Ftrl(c, g, lr);
          break;
      }
    }
    period = step / config.decay_steps;
  }
};

void TestFormulas() {
  for (const OptimizerConfig& config : Configs()) {
    CHECK_OK(CheckOptimizer(config));
    for (const int dim : {1, 3, 8, 16, 21, 64}) {
      const size_t width = static_cast<size_t>(dim);
      const RowLayout layout = LayoutOf(config, dim);
      Rows rows(layout, kRows);
      std::vector<Reference> expected;
      for (const float* row : rows.row) expected.emplace_back(config, row, width);
      for (const int64_t step : {0, 1, 2, 7, 8, 40, 1000}) {
        const float lr = step == 7 ? 0.2f : 0.05f;
        const std::vector<float> grads = Gradients(kRows * width, static_cast<unsigned>(step));
        std::vector<float*> given = rows.row;
        for (size_t i = 0; i < kRows; ++i) {
          if (i % 5 == static_cast<size_t>(step) % 5) {
            given[i] = nullptr;  // a key whose row is gone
          } else {
            expected[i].Step(grads.data() + i * width, lr, step);
          }
        }
        ApplyRows(config, layout, UpdateStep{lr, step}, given.data(), grads.data(), kRows);
        for (size_t i = 0; i < kRows; ++i) {
          for (size_t c = 0; c < width; ++c) {
            CHECK(std::fabs(rows.row[i][c] - expected[i].w[c]) <= 1e-6 + 1e-5 * std::fabs(expected[i].w[c]));
          }
        }
      }
      rows.CheckCanaries();
    }
  }
}

void TestEveryInstructionSetGivesTheSameBits() {
  for (const OptimizerConfig& config : Configs()) {
    for (const int dim : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 48, 64, 100, 130}) {
      const size_t width = static_cast<size_t>(dim);
      const RowLayout layout = LayoutOf(config, dim);
      Rows baseline(layout, kRows), other(layout, kRows), wide(layout, kRows);
      for (int64_t step = 0; step < 6; ++step) {
        const std::vector<float> grads = Gradients(kRows * width, static_cast<unsigned>(step) + 100);
        const UpdateStep update{0.1f, step * 2};
        ApplyRows(config, layout, update, baseline.row.data(), grads.data(), kRows, Isa::kBaseline);
        ApplyRows(config, layout, update, other.row.data(), grads.data(), kRows, DetectedIsa());
        CHECK(baseline == other);
        const OptimizerTask task = OptimizerTaskOf(config, layout, update);
        if (task.kind == Kind::kFtrl && task.power != 0.5f) continue;
        ApplyWideLanes(task, wide.row.data(), grads.data(), kRows);
        CHECK(baseline == wide);
      }
    }
  }
}

// A call for many rows gives what calls for its parts give.
void TestPartsOfABatch() {
  for (const OptimizerConfig& config : Configs()) {
    const RowLayout layout = LayoutOf(config, 16);
    Rows whole(layout, kRows), parts(layout, kRows);
    const std::vector<float> grads = Gradients(kRows * 16, 5);
    ApplyRows(config, layout, UpdateStep{0.1f, 4}, whole.row.data(), grads.data(), kRows);
    for (size_t i = 0; i < kRows; i += 3) {
      const size_t n = std::min<size_t>(3, kRows - i);
      ApplyRows(config, layout, UpdateStep{0.1f, 4}, parts.row.data() + i, grads.data() + i * 16, n);
    }
    CHECK(whole == parts);
    ApplyRows(config, layout, UpdateStep{0.1f, 5}, nullptr, nullptr, 0);
  }
}

void TestLearningRateZeroLeavesValues() {
  for (const OptimizerConfig& config : Configs()) {
    if (config.kind == Kind::kFtrl) continue;  // divides by it: CheckStep refuses it
    const RowLayout layout = LayoutOf(config, 8);
    Rows before(layout, kRows), after(layout, kRows);
    const std::vector<float> grads = Gradients(kRows * 8, 6);
    ApplyRows(config, layout, UpdateStep{0.0f, 0}, after.row.data(), grads.data(), kRows);
    for (size_t i = 0; i < kRows; ++i) CHECK(std::equal(before.row[i], before.row[i] + 8, after.row[i]));
  }
}

void TestZeroGradientIsFinite() {
  for (OptimizerConfig config : Configs()) {
    config.initial_accumulator = 0;
    config.l2 = config.beta = 0;
    CHECK_OK(CheckOptimizer(config));
    const RowLayout layout = LayoutOf(config, 20);
    Rows rows(layout, kRows);
    const std::vector<float> grads(kRows * 20, 0.0f);
    ApplyRows(config, layout, UpdateStep{0.1f, 0}, rows.row.data(), grads.data(), kRows);
    for (const float* row : rows.row) {
      for (size_t f = 0; f < layout.floats(); ++f) CHECK(std::isfinite(row[f]));
    }
  }
}

void TestLazyAdamStartsLate() {
  OptimizerConfig lazy;
  lazy.kind = Kind::kLazyAdam;
  const RowLayout layout = LayoutOf(lazy, 4);
  Rows early(layout, 1), late(layout, 1);
  const std::vector<float> grads = {1.0f, -1.0f, 0.5f, 0.001f};
  ApplyRows(lazy, layout, UpdateStep{0.1f, 0}, early.row.data(), grads.data(), 1);
  const Rows fresh(layout, 1);
  ApplyRows(lazy, layout, UpdateStep{0.1f, 1000000}, late.row.data(), grads.data(), 1);
  CHECK(early == late);
  // The first step of Adam is the learning rate in the direction of the gradient.
  CHECK(std::fabs(late.row[0][0] - (fresh.row[0][0] - 0.1f)) < 1e-5f);
}

void TestAdagradDecayCatchesUp() {
  OptimizerConfig config;
  config.kind = Kind::kAdagradDecay;
  config.decay_steps = 10;
  config.decay_rate = 0.5;
  const RowLayout layout = LayoutOf(config, 1);
  Rows rows(layout, 1);
  const float one = 1.0f;
  float* accumulator = layout.slot(rows.row[0], 0);
  const auto apply = [&](int64_t step) {
    ApplyRows(config, layout, UpdateStep{0.1f, step}, rows.row.data(), &one, 1);
    return *accumulator;
  };
  CHECK_EQ(apply(9), 0.1f + 1.0f);
  CHECK_EQ(apply(10), (0.1f + 1.0f) * 0.5f + 1.0f);           // one period
  CHECK_EQ(apply(19), ((0.1f + 1.0f) * 0.5f + 1.0f) + 1.0f);  // the same period
  CHECK_EQ(apply(49), (((0.1f + 1.0f) * 0.5f + 1.0f) + 1.0f) * 0.125f + 1.0f);
  CHECK_EQ(apply(1000000), 0.1f + 1.0f);  // the floor
}

void TestCheck() {
  const auto fails = [](const char* name, auto change, const char* part) {
    OptimizerConfig config;
    config.kind = OptimizerKind(name).value();
    CHECK_OK(CheckOptimizer(config));
    change(&config);
    CHECK_FAILS(CheckOptimizer(config), Code::kInvalid, part);
    CHECK_FAILS(CheckOptimizer(config), Code::kInvalid, name);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  fails("adagrad", [](OptimizerConfig* c) { c->epsilon = 0; }, "epsilon is 0");
  fails("adam", [=](OptimizerConfig* c) { c->epsilon = nan; }, "epsilon");
  fails("rowwise_adagrad", [](OptimizerConfig* c) { c->initial_accumulator = -1; }, "initial_accumulator_value is -1");
  fails("adam", [](OptimizerConfig* c) { c->beta1 = 1; }, "beta_1 is 1");
  fails("lazy_adam", [=](OptimizerConfig* c) { c->beta2 = nan; }, "beta_2");
  fails("adam", [](OptimizerConfig* c) { c->beta2 = 0.99999999; }, "beta_2 is 0.99999999");  // 1 in float32
  fails("adam", [](OptimizerConfig* c) { c->epsilon = 1e-60; }, "epsilon is 1e-60");         // 0 in float32
  fails("ftrl", [](OptimizerConfig* c) { c->initial_accumulator = 1e300; }, "is 1e+300");    // inf in float32
  fails("adamw", [](OptimizerConfig* c) { c->weight_decay = -0.5; }, "weight_decay is -0.5");
  fails("ftrl", [](OptimizerConfig* c) { c->learning_rate_power = 0.5; }, "learning_rate_power is 0.5");
  fails("ftrl", [](OptimizerConfig* c) { c->l1 = -1; }, "l1_regularization_strength is -1");
  fails("adagrad_decay", [](OptimizerConfig* c) { c->decay_rate = 0; }, "accumulator_decay_rate is 0");
  fails("adagrad_decay", [](OptimizerConfig* c) { c->decay_steps = 0; }, "accumulator_decay_steps is 0");
  CHECK_FAILS(OptimizerKind("adamax").status(), Code::kInvalid, "'adamax', expected one of sgd, adagrad,");
}

void TestCheckStep() {
  for (const OptimizerConfig& config : Configs()) {
    CHECK_OK(CheckStep(config, {0.1f, 0}));
    CHECK_FAILS(CheckStep(config, {std::numeric_limits<float>::quiet_NaN(), 0}), Code::kInvalid,
                "learning rate is nan");
    CHECK_FAILS(CheckStep(config, {std::numeric_limits<float>::infinity(), 0}), Code::kInvalid, "is inf");
    CHECK_FAILS(CheckStep(config, {0.1f, -1}), Code::kInvalid, "step is -1");
    CHECK_EQ(CheckStep(config, {0.0f, 0}).ok(), config.kind != Kind::kFtrl);
  }
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestFormulas();
  tfctr::TestEveryInstructionSetGivesTheSameBits();
  tfctr::TestPartsOfABatch();
  tfctr::TestLearningRateZeroLeavesValues();
  tfctr::TestZeroGradientIsFinite();
  tfctr::TestLazyAdamStartsLate();
  tfctr::TestAdagradDecayCatchesUp();
  tfctr::TestCheck();
  tfctr::TestCheckStep();
}
