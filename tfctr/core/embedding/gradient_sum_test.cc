// Sums of gradients per key against a map, clipping against its formulas, and what is refused.
#include "tfctr/core/embedding/gradient_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

void CheckSums(GradientSum* sum, const std::vector<int64_t>& keys, const std::vector<float>& grads, int dim) {
  const size_t width = static_cast<size_t>(dim);
  std::map<int64_t, size_t> place;
  std::vector<int64_t> order;
  std::vector<std::vector<float>> sums;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto begin = grads.begin() + static_cast<ptrdiff_t>(i * width);
    const auto [at, is_new] = place.emplace(keys[i], order.size());
    if (is_new) {
      order.push_back(keys[i]);
      sums.emplace_back(begin, begin + dim);
    } else {
      for (size_t c = 0; c < width; ++c) sums[at->second][c] += grads[i * width + c];
    }
  }
  CHECK_OK(sum->Sum(keys.data(), keys.size(), grads.data(), dim));
  CHECK_EQ(sum->size(), order.size());
  CHECK_EQ(sum->dim(), dim);
  for (size_t i = 0; i < order.size(); ++i) {
    CHECK_EQ(sum->keys()[i], order[i]);
    CHECK(std::memcmp(sum->sums() + i * width, sums[i].data(), width * sizeof(float)) == 0);
  }
}

// One object over batches of all sizes, as a training run uses it.
void TestAgainstMap() {
  GradientSum sum;
  std::mt19937_64 random(3);
  for (const size_t n : {0, 1, 2, 1000, 5, 40, 7000, 64, 300}) {
    for (const uint64_t distinct : {1, 3, 100, 1000000000}) {
      for (const int dim : {1, 7, 16}) {
        std::vector<int64_t> keys(n);
        // Multiples of a large power of two: equal low bits.
        for (int64_t& key : keys) key = static_cast<int64_t>((random() % distinct) << (distinct < 1000 ? 57 : 20));
        std::vector<float> grads(n * static_cast<size_t>(dim));
        for (float& g : grads) g = static_cast<float>(random() % 2000) * 0.001f - 1.0f;
        CheckSums(&sum, keys, grads, dim);
      }
    }
  }
}

void TestEveryKeyIsOrdinary() {
  const int64_t low = std::numeric_limits<int64_t>::min();
  const int64_t high = std::numeric_limits<int64_t>::max();
  GradientSum sum;
  CheckSums(&sum, {0, -1, low, high, 0, low, -1, high, 1, -2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 1);
}

// Where all keys are distinct nothing is copied, until it is clipped.
void TestDistinctKeysAreNotCopied() {
  const std::vector<int64_t> keys = {5, 6, 7};
  const std::vector<float> grads = {1, -3, 0.5f};
  GradientSum sum;
  CHECK_OK(sum.Sum(keys.data(), 3, grads.data(), 1));
  CHECK(sum.sums() == grads.data() && sum.keys() == keys.data());
  sum.Clip({ClipConfig::Kind::kNone, 0});
  CHECK(sum.sums() == grads.data());
  sum.Clip({ClipConfig::Kind::kValue, 1});
  CHECK(sum.sums() != grads.data());
  CHECK_EQ(sum.sums()[1], -1.0f);
  CHECK_EQ(grads[1], -3.0f);
}

void TestNotFinite() {
  GradientSum sum;
  const std::vector<int64_t> keys = {4, 9, 4, -8};
  for (const auto& [bad, text] :
       std::vector<std::pair<float, const char*>>{{kNan, "nan"}, {kInf, "inf"}, {-kInf, "-inf"}}) {
    const std::vector<float> grads = {1, 1, 2, 2, 3, bad, 4, bad};
    const Status status = sum.Sum(keys.data(), 4, grads.data(), 2);
    CHECK_EQ(status.message, std::string("the gradient of key 4 is not finite (") + text + " in column 1)");
    CHECK(status.code == Code::kInvalid);
    CHECK_EQ(sum.size(), size_t{3});
  }
  // Infinities of both signs do not cancel, and finite gradients may overflow.
  const std::vector<float> both = {kInf, 0, -kInf, 0};
  CHECK_FAILS(sum.Sum(keys.data(), 4, both.data(), 1), Code::kInvalid, "key 4 is not finite (nan");
  const std::vector<float> huge = {3e38f, 0, 3e38f, 0};
  CHECK_FAILS(sum.Sum(keys.data(), 4, huge.data(), 1), Code::kInvalid, "key 4 is not finite (inf");
  // All distinct, the bad one last.
  const std::vector<float> last = {0, 0, kNan};
  const std::vector<int64_t> distinct = {1, 2, 3};
  CHECK_FAILS(sum.Sum(distinct.data(), 3, last.data(), 1), Code::kInvalid, "key 3 ");
  const std::vector<float> good = {1, 2, 3};
  CHECK_OK(sum.Sum(distinct.data(), 3, good.data(), 1));
}

void TestClip() {
  const std::vector<int64_t> keys = {1, 2, 1, 3};
  const std::vector<float> grads = {2, 4, 0.3f, 0.4f, 1, 0, 0, 0};  // sums: (3, 4), (0.3, 0.4), (0, 0)
  const auto clipped = [&](ClipConfig::Kind kind, float limit) {
    GradientSum sum;
    CHECK_OK(sum.Sum(keys.data(), 4, grads.data(), 2));
    sum.Clip({kind, limit});
    return std::vector<float>(sum.sums(), sum.sums() + sum.size() * 2);
  };
  const auto near = [](const std::vector<float>& a, const std::vector<float>& b) {
    CHECK_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) CHECK(std::fabs(a[i] - b[i]) < 1e-6f);
  };
  near(clipped(ClipConfig::Kind::kValue, 0.35f), {0.35f, 0.35f, 0.3f, 0.35f, 0, 0});
  near(clipped(ClipConfig::Kind::kNorm, 1.0f), {0.6f, 0.8f, 0.3f, 0.4f, 0, 0});
  near(clipped(ClipConfig::Kind::kNorm, 5.0f), {3, 4, 0.3f, 0.4f, 0, 0});
  const float norm = std::sqrt(25.25f);
  near(clipped(ClipConfig::Kind::kGlobalNorm, 1.0f), {3 / norm, 4 / norm, 0.3f / norm, 0.4f / norm, 0, 0});
  near(clipped(ClipConfig::Kind::kGlobalNorm, 100.0f), {3, 4, 0.3f, 0.4f, 0, 0});
  // Squares that overflow float.
  GradientSum sum;
  const std::vector<float> huge = {3e30f, 4e30f};
  CHECK_OK(sum.Sum(keys.data(), 1, huge.data(), 2));
  sum.Clip({ClipConfig::Kind::kNorm, 1.0f});
  near({sum.sums()[0], sum.sums()[1]}, {0.6f, 0.8f});
}

// The inverse of multiplying by an odd number.
uint64_t Inverse(uint64_t odd) {
  uint64_t inverse = odd;
  for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

double MillisecondsOfSum(const std::vector<int64_t>& keys) {
  GradientSum sum;
  const std::vector<float> grads(keys.size(), 1.0f);
  const std::clock_t start = std::clock();  // CPU time: others may have the processor meanwhile
  CHECK_OK(sum.Sum(keys.data(), keys.size(), grads.data(), 1));
  CHECK_EQ(sum.size(), keys.size());
  return 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Keys that the hash without its salt gives 0, 1, 2, ...: all of one entry. Each then looked at all before it.
void TestKeysMadeToCollide() {
  std::vector<int64_t> usual, colliding;
  for (uint64_t i = 0; i < 30000; ++i) {
    usual.push_back(static_cast<int64_t>(i));
    uint64_t x = i * Inverse(0x9e3779b97f4a7c15u);
    x ^= x >> 32;
    x *= Inverse(0xd6e8feb86659fd93u);
    colliding.push_back(static_cast<int64_t>(x ^ (x >> 32)));
  }
  double slowest = 0.0, fastest = 1e9;
  for (int again = 0; again < 3; ++again) {
    slowest = std::max(slowest, MillisecondsOfSum(usual));
    fastest = std::min(fastest, MillisecondsOfSum(colliding));
  }
  CHECK(fastest < 10 * slowest);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestAgainstMap();
  tfctr::TestEveryKeyIsOrdinary();
  tfctr::TestDistinctKeysAreNotCopied();
  tfctr::TestNotFinite();
  tfctr::TestClip();
  tfctr::TestKeysMadeToCollide();
}
