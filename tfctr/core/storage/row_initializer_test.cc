// Initial values: Philox's published vectors, the definition in row_initializer.h value by value, equal bits on every
// instruction set and in every order, and the statistics of a million keys.
#include "tfctr/core/storage/row_initializer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "tfctr/core/storage/philox.h"
#include "tfctr/core/storage/test_util.h"

// The lanes of the AVX-512 form, run on any CPU.
#pragma GCC diagnostic ignored "-Wpsabi"
#define TFCTR_FILL FillWideLanes
#define TFCTR_ISA_NAMESPACE isa_wide_lanes
#define TFCTR_VECTOR_BYTES 64
#include "tfctr/core/storage/row_initializer_impl.h"

namespace tfctr {
namespace {

using Kind = InitializerConfig::Kind;

const InitializerConfig kConfigs[] = {
    {Kind::kUniform, -0.05f, 0.05f, 1},
    {Kind::kUniform, 1.0f, 1.000001f, 0xffffffffffffffffu},
    {Kind::kNormal, 0.0f, 1.0f, 0x123456789abcdefu},
    {Kind::kNormal, 0.5f, 0.01f, 0},
    {Kind::kTruncatedNormal, 0.0f, 1.0f, 42},
    {Kind::kTruncatedNormal, -3.0f, 2.0f, uint64_t{1} << 63},
};

std::vector<Isa> Isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (static_cast<int>(isa) <= static_cast<int>(DetectedIsa())) isas.push_back(isa);
  }
  return isas;
}

std::vector<int64_t> SomeKeys() {
  std::vector<int64_t> keys = {0,
                               1,
                               -1,
                               2,
                               3,
                               std::numeric_limits<int64_t>::min(),
                               std::numeric_limits<int64_t>::max(),
                               int64_t{1} << 32,
                               -(int64_t{1} << 32),
                               0xffffffff};
  for (int64_t i = 0; i < 91; ++i) keys.push_back(i * 0x123456789abcdef - 7);
  return keys;
}

std::vector<float> Filled(const RowInitializer& init, const std::vector<int64_t>& keys) {
  const size_t dim = static_cast<size_t>(init.dim());
  std::vector<float> values(keys.size() * dim + 1, -77.0f);
  std::vector<float*> rows;
  for (size_t i = 0; i < keys.size(); ++i) rows.push_back(values.data() + i * dim);
  init.Fill(keys.data(), keys.size(), rows.data());
  CHECK_EQ(values.back(), -77.0f);  // nothing written behind the last row
  values.pop_back();
  return values;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

uint32_t Word(uint64_t seed, int64_t key, size_t column) {
  const uint64_t k = static_cast<uint64_t>(key);
  return Philox4x32({static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32), static_cast<uint32_t>(column / 4), 0},
                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32))[column % 4];
}

void TestPublishedVectors() {
  using Four = std::array<uint32_t, 4>;
  CHECK((Philox4x32({0, 0, 0, 0}, 0, 0) == Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((Philox4x32({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) == Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
         Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

void TestUniformByDefinition() {
  const std::vector<int64_t> keys = SomeKeys();
  for (const InitializerConfig& config : kConfigs) {
    if (config.kind != Kind::kUniform) continue;
    const int dim = 37;
    const std::vector<float> values = Filled(RowInitializer(config, dim), keys);
    const float scale = (config.b - config.a) * 0x1p-24f;
    const float below = std::nextafter(config.b, config.a);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t word = Word(config.seed, keys[i / dim], i % dim);
      volatile float product = static_cast<float>(word >> 8) * scale;
      CHECK_EQ(values[i], std::min(product + config.a, below));
      CHECK(values[i] >= config.a && values[i] < config.b);
    }
  }
}

// Error of z as a quantile: Phi(-z) - p over the density.
void TestNormalByDefinition() {
  const std::vector<int64_t> keys = SomeKeys();
  const double tail_of_two = 0.5 * std::erfc(std::sqrt(2.0));
  for (const InitializerConfig& config : kConfigs) {
    if (config.kind != Kind::kNormal && config.kind != Kind::kTruncatedNormal) continue;
    if (config.a != 0 || config.b != 1) continue;
    const int dim = 256;
    const std::vector<float> values = Filled(RowInitializer(config, dim), keys);
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t word = Word(config.seed, keys[i / dim], i % dim);
      double p = ((word & 0x7fffffffu) + 0.5) * 0x1p-32;
      if (config.kind == Kind::kTruncatedNormal) p = tail_of_two + p * 2 * (0.5 - tail_of_two);
      const double z = (word >> 31) != 0 ? -values[i] : values[i];
      const double density = std::exp(-z * z / 2) / std::sqrt(2 * 3.14159265358979323846);
      worst = std::max(worst, std::fabs((0.5 * std::erfc(z / std::sqrt(2.0)) - p) / density));
      if (config.kind == Kind::kTruncatedNormal) CHECK(std::fabs(values[i]) <= 2.0f);
    }
    CHECK(worst < 3e-6);
  }
}

void TestEveryInstructionSetGivesTheSameBits() {
  const std::vector<int64_t> keys = SomeKeys();
  for (const InitializerConfig& config : kConfigs) {
    for (const int dim : {1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100, 128, 200, 1000}) {
      const std::vector<float> expected = Filled(RowInitializer(config, dim, Isa::kBaseline), keys);
      for (const Isa isa : Isas()) CHECK(SameBits(Filled(RowInitializer(config, dim, isa), keys), expected));
    }
  }
}

void TestWideLanesGiveTheSameBits() {
  const std::vector<int64_t> keys = SomeKeys();
  for (const int dim : {1, 4, 5, 8, 16, 20, 31, 32, 33, 64, 100, 200}) {
    for (const bool normal : {false, true}) {
      const InitializerConfig config =
          normal ? InitializerConfig{Kind::kNormal, 0.0f, 1.0f, 99} : InitializerConfig{Kind::kUniform, 0.0f, 1.0f, 99};
      const FillTask task = {config.kind,  0.0f, normal ? 1.0f : 0x1p-24f, 0.99999994f, 0.0f, 0x1p-32f, 7.0f,
                             uint64_t{99}, dim};
      std::vector<float> values(keys.size() * static_cast<size_t>(dim));
      std::vector<float*> rows;
      for (size_t i = 0; i < keys.size(); ++i) rows.push_back(values.data() + i * static_cast<size_t>(dim));
      FillWideLanes(task, keys.data(), keys.size(), rows.data());
      CHECK(SameBits(values, Filled(RowInitializer(config, dim), keys)));
    }
  }
}

void TestOrderAndBatchesDoNotMatter() {
  const std::vector<int64_t> keys = SomeKeys();
  for (const InitializerConfig& config : kConfigs) {
    for (const int dim : {3, 8, 16, 50, 64}) {
      const size_t width = static_cast<size_t>(dim);
      const RowInitializer init(config, dim);
      const std::vector<float> expected = Filled(init, keys);
      for (size_t i = keys.size(); i-- > 0;) {
        const std::vector<float> one = Filled(init, {keys[i]});
        CHECK(std::equal(one.begin(), one.end(), expected.begin() + static_cast<ptrdiff_t>(i * width)));
      }
    }
  }
}

// A value may never change between releases: a table restored without some of its rows would get others.
void TestValuesOfRecord() {
  const std::vector<std::pair<Kind, uint64_t>> expected = {{Kind::kUniform, 0xa9b0cf1f40345d2du},
                                                           {Kind::kNormal, 0x10dfaa8cbb0f8cfcu},
                                                           {Kind::kTruncatedNormal, 0xc08660c3be3b42d7u}};
  for (const auto& [kind, sum] : expected) {
    const std::vector<float> values = Filled(RowInitializer({kind, -0.5f, 0.5f, 20240607}, 19), SomeKeys());
    uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the words
    for (const float value : values) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      hash = (hash ^ bits) * 0x100000001b3u;
    }
    CHECK_EQ(hash, sum);
  }
}

// --- statistics ----------------------------------------------------------------------------------------------------

constexpr size_t kSamples = 1000000;
constexpr size_t kColumns = 8;

double Cdf(const InitializerConfig& config, double x) {
  const double z = (x - config.a) / config.b;
  const auto phi = [](double t) { return 0.5 * std::erfc(-t / std::sqrt(2.0)); };
  if (config.kind == Kind::kUniform) return (x - config.a) / (static_cast<double>(config.b) - config.a);
  if (config.kind == Kind::kNormal) return phi(z);
  return (phi(z) - phi(-2)) / (phi(2) - phi(-2));
}

// sqrt(n) times the largest distance between the empirical and the true distribution.
double KolmogorovSmirnov(const InitializerConfig& config, std::vector<float> sample) {
  std::sort(sample.begin(), sample.end());
  const double n = static_cast<double>(sample.size());
  double worst = 0;
  for (size_t i = 0; i < sample.size(); ++i) {
    const double at = Cdf(config, sample[i]);
    worst = std::max({worst, at - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - at});
  }
  return worst * std::sqrt(n);
}

std::vector<float> Column(const std::vector<float>& values, size_t column) {
  std::vector<float> out(kSamples);
  for (size_t i = 0; i < kSamples; ++i) out[i] = values[i * kColumns + column];
  return out;
}

// sqrt(n) times the correlation: about N(0, 1) where there is none.
double Correlation(const std::vector<float>& a, const std::vector<float>& b, size_t lag = 0) {
  const size_t n = a.size() - lag;
  double ma = 0, mb = 0, ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < n; ++i) {
    ma += a[i] / static_cast<double>(n);
    mb += b[i + lag] / static_cast<double>(n);
  }
  for (size_t i = 0; i < n; ++i) {
    ab += (a[i] - ma) * (b[i + lag] - mb);
    aa += (a[i] - ma) * (a[i] - ma);
    bb += (b[i + lag] - mb) * (b[i + lag] - mb);
  }
  return ab / std::sqrt(aa * bb) * std::sqrt(static_cast<double>(n));
}

void TestStatistics(const InitializerConfig& config, double variance) {
  // Consecutive keys, the hardest for a weak generator.
  std::vector<int64_t> keys(kSamples);
  for (size_t i = 0; i < kSamples; ++i) keys[i] = static_cast<int64_t>(i) - 1000;
  const std::vector<float> values = Filled(RowInitializer(config, kColumns), keys);
  InitializerConfig other_seed = config;
  ++other_seed.seed;
  const std::vector<float> others = Filled(RowInitializer(other_seed, kColumns), keys);

  const double mean = config.kind == Kind::kUniform ? (static_cast<double>(config.a) + config.b) / 2 : config.a;
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value - mean;
    squares += (value - mean) * (value - mean);
  }
  const double n = static_cast<double>(values.size());
  CHECK(std::fabs(sum / n) < 4 * std::sqrt(variance / n));
  // The variance of squares is below 2 * variance^2 for all three distributions.
  CHECK(std::fabs(squares / n - variance) < 4 * variance * std::sqrt(2 / n));

  std::vector<std::vector<float>> columns;
  for (size_t c = 0; c < kColumns; ++c) columns.push_back(Column(values, c));
  for (const size_t c : {0, 3, 5}) CHECK(KolmogorovSmirnov(config, columns[c]) < 1.95);  // p = 0.001
  for (size_t c = 0; c < kColumns; ++c) {
    CHECK(std::fabs(Correlation(columns[c], columns[(c + 1) % kColumns])) < 4);  // neighbouring columns
    CHECK(std::fabs(Correlation(columns[c], columns[(c + 4) % kColumns])) < 4);  // one word of two blocks
    CHECK(std::fabs(Correlation(columns[c], columns[c], 1)) < 4);                // neighbouring keys
    CHECK(std::fabs(Correlation(columns[c], Column(others, c))) < 4);            // neighbouring seeds
  }
}

// --- bad input -----------------------------------------------------------------------------------------------------

void TestCheck() {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float huge = std::numeric_limits<float>::max();
  for (const InitializerConfig& config : kConfigs) CHECK_OK(RowInitializer::Check(config, 16));
  CHECK_FAILS(RowInitializer::Check(kConfigs[0], 0), Code::kInvalid, "dimension");
  CHECK_FAILS(RowInitializer::Check({Kind::kConstant, nan, 0, 0}, 1), Code::kInvalid, "constant");
  CHECK_FAILS(RowInitializer::Check({Kind::kUniform, 2, 1, 0}, 1), Code::kInvalid, "lower bound");
  CHECK_FAILS(RowInitializer::Check({Kind::kUniform, -huge, huge, 0}, 1), Code::kInvalid, "finite");
  CHECK_FAILS(RowInitializer::Check({Kind::kNormal, inf, 1, 0}, 1), Code::kInvalid, "mean");
  CHECK_FAILS(RowInitializer::Check({Kind::kTruncatedNormal, 0, -1, 0}, 1), Code::kInvalid, "standard deviation");
}

void TestDegenerate() {
  for (const InitializerConfig& config :
       {InitializerConfig{Kind::kConstant, 0.25f, 9, 1}, InitializerConfig{Kind::kUniform, 0.25f, 0.25f, 1},
        InitializerConfig{Kind::kNormal, 0.25f, 0, 1}, InitializerConfig{Kind::kTruncatedNormal, 0.25f, 0, 1}}) {
    for (const float value : Filled(RowInitializer(config, 21), SomeKeys())) CHECK_EQ(value, 0.25f);
  }
  // Bounds between which there is one float.
  const InitializerConfig narrow = {Kind::kUniform, 0.0f, std::numeric_limits<float>::denorm_min(), 1};
  for (const float value : Filled(RowInitializer(narrow, 5), SomeKeys())) CHECK_EQ(value, 0.0f);
  Filled(RowInitializer(kConfigs[0], 64), {});
}

}  // namespace
}  // namespace tfctr

int main() {
  using tfctr::InitializerConfig;
  using Kind = InitializerConfig::Kind;
  tfctr::TestPublishedVectors();
  tfctr::TestUniformByDefinition();
  tfctr::TestNormalByDefinition();
  tfctr::TestEveryInstructionSetGivesTheSameBits();
  tfctr::TestWideLanesGiveTheSameBits();
  tfctr::TestOrderAndBatchesDoNotMatter();
  tfctr::TestValuesOfRecord();
  tfctr::TestStatistics({Kind::kUniform, -0.05f, 0.05f, 7}, 0.01 / 12);
  tfctr::TestStatistics({Kind::kNormal, 0.0f, 2.0f, 7}, 4.0);
  tfctr::TestStatistics({Kind::kTruncatedNormal, 1.0f, 1.0f, 7}, 0.7737413);
  tfctr::TestCheck();
  tfctr::TestDegenerate();
}
