#include "tfctr/core/storage/row_initializer.h"

#include <cmath>
#include <cstring>
#include <string>

namespace tfctr {

void FillBaseline(const FillTask& task, const int64_t* keys, size_t n, float* const* rows);
void FillAvx2(const FillTask& task, const int64_t* keys, size_t n, float* const* rows);
void FillAvx512(const FillTask& task, const int64_t* keys, size_t n, float* const* rows);

namespace {

constexpr double kTailOfTwo = 0.02275013194817921;  // Phi(-2)

Isa IsaInUse() {
  const Result<Isa> isa = ActiveIsa();
  return isa.ok() ? isa.value() : Isa::kBaseline;  // Check has told of it; the bits are the same
}

// The largest float below x, x > -FLT_MAX.
float Below(float x) {
  if (x == 0.0f) return -1.401298464e-45f;
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += x > 0 ? -1 : 1;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

FillTask TaskOf(const InitializerConfig& config, int dim) {
  using Kind = InitializerConfig::Kind;
  FillTask task{config.kind, config.a, config.b, 0.0f, 0.0f, 0.0f, 0.0f, config.seed, dim};
  switch (config.kind) {
    case Kind::kConstant:
      break;
    case Kind::kUniform:
      if (config.a == config.b) {
        task.kind = Kind::kConstant;
        break;
      }
      task.scale = (config.b - config.a) * 0x1p-24f;
      task.limit = Below(config.b);
      break;
    case Kind::kNormal:
      task.tail_step = 0x1p-32f;
      task.max_z = 7.0f;
      break;
    case Kind::kTruncatedNormal:
      task.tail_start = static_cast<float>(kTailOfTwo);
      task.tail_step = static_cast<float>((0.5 - kTailOfTwo) * 0x1p-31);
      task.max_z = 2.0f;
      break;
  }
  return task;
}

}  // namespace

Status RowInitializer::Check(const InitializerConfig& config, int dim) {
  using Kind = InitializerConfig::Kind;
  const auto text = [](float x) { return std::to_string(x); };
  if (dim < 1) return Status::Invalid("initial values need a dimension of at least 1, got " + std::to_string(dim));
  const Result<Isa> isa = ActiveIsa();
  if (!isa.ok()) return isa.status();
  switch (config.kind) {
    case Kind::kConstant:
      if (!std::isfinite(config.a))
        return Status::Invalid("the constant initial value " + text(config.a) + " is not finite");
      return Status::Ok();
    case Kind::kUniform:
      if (!std::isfinite(config.a) || !std::isfinite(config.b) || !std::isfinite(config.b - config.a)) {
        return Status::Invalid("uniform initial values from " + text(config.a) + " to " + text(config.b) +
                               ": both bounds and their difference must be finite");
      }
      if (config.a > config.b) {
        return Status::Invalid("uniform initial values from " + text(config.a) + " to " + text(config.b) +
                               ": the lower bound is above the upper one");
      }
      return Status::Ok();
    case Kind::kNormal:
    case Kind::kTruncatedNormal:
      if (!std::isfinite(config.a))
        return Status::Invalid("the mean " + text(config.a) + " of initial values is not finite");
      if (!std::isfinite(config.b) || config.b < 0) {
        return Status::Invalid("the standard deviation " + text(config.b) +
                               " of initial values must be finite and not negative");
      }
      return Status::Ok();
  }
  return Status::Invalid("unknown kind of initial values " + std::to_string(static_cast<int>(config.kind)));
}

RowInitializer::RowInitializer(const InitializerConfig& config, int dim) : RowInitializer(config, dim, IsaInUse()) {}

RowInitializer::RowInitializer(const InitializerConfig& config, int dim, Isa isa)
    : config_(config), task_(TaskOf(config, dim)), kernel_(FillBaseline) {
  if (isa == Isa::kAvx2) kernel_ = FillAvx2;
  if (isa == Isa::kAvx512) kernel_ = FillAvx512;
}

void RowInitializer::Fill(const int64_t* keys, size_t n, float* const* rows) const { kernel_(task_, keys, n, rows); }

}  // namespace tfctr
