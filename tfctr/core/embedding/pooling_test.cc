// Combining rows and its gradients against the formulas in double, gradients against differences.
#include "tfctr/core/embedding/pooling.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

struct Batch {
  std::vector<int64_t> splits{0};
  std::vector<std::vector<float>> values;
  std::vector<const float*> rows;
  std::vector<float> weights;
  std::vector<float> fallback;

  Batch(int dim, const std::vector<int>& lengths, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> value(-1.0f, 1.0f), weight(0.2f, 2.0f);
    for (int length : lengths) splits.push_back(splits.back() + length);
    fallback.resize(dim);
    for (float& x : fallback) x = value(random);
    values.resize(splits.back());
    for (std::vector<float>& row : values) {
      row.resize(dim);
      for (float& x : row) x = value(random);
      weights.push_back(weight(random));
    }
    for (size_t i = 0; i < values.size(); ++i) rows.push_back(i % 5 == 4 ? nullptr : values[i].data());
  }
  const float* row(size_t i) const { return rows[i] == nullptr ? fallback.data() : rows[i]; }
};

// One element of the combined row r.
double Expected(const Pooling& pooling, const Batch& batch, bool weighted, size_t r, int column) {
  double sum = 0, divisor = 0;
  for (int64_t i = batch.splits[r]; i < batch.splits[r + 1]; ++i) {
    const float* row = batch.row(i);
    double norm = 0;
    for (int c = 0; c < pooling.dim; ++c) norm += double{row[c]} * row[c];
    norm = std::sqrt(norm);
    const double scale = pooling.limited() && norm > pooling.max_norm ? pooling.max_norm / norm : 1.0;
    const double weight = weighted ? batch.weights[i] : 1.0;
    sum += weight * scale * row[column];
    divisor += pooling.combiner == Combiner::kSqrtn ? weight * weight : weight;
  }
  if (pooling.combiner == Combiner::kSum) return sum;
  if (divisor == 0) return 0;
  return sum / (pooling.combiner == Combiner::kSqrtn ? std::sqrt(divisor) : divisor);
}

std::vector<float> Pooled(const Pooling& pooling, const Batch& batch, bool weighted, size_t piece) {
  const size_t rows = batch.splits.size() - 1;
  std::vector<float> out(rows * pooling.dim, 77.0f);
  Pooler pooler(pooling, batch.splits.data(), rows, weighted ? batch.weights.data() : nullptr, batch.fallback.data(),
                out.data());
  for (size_t at = 0; at < batch.rows.size(); at += piece) {
    pooler.Add(batch.rows.data() + at, std::min(piece, batch.rows.size() - at));
  }
  pooler.Finish();
  return out;
}

const std::vector<int> kLengths = {0, 3, 1, 0, 0, 7, 2, 0};

void TestValues() {
  for (int dim : {1, 3, 4, 16, 65}) {
    for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
      for (float limit : {-1.0f, 0.7f}) {
        for (bool weighted : {false, true}) {
          const Batch batch(dim, kLengths, dim);
          const Pooling pooling{combiner, dim, limit};
          const std::vector<float> whole = Pooled(pooling, batch, weighted, 1000);
          CHECK(whole == Pooled(pooling, batch, weighted, 1));
          CHECK(whole == Pooled(pooling, batch, weighted, 4));
          for (size_t r = 0; r < kLengths.size(); ++r) {
            for (int c = 0; c < dim; ++c) {
              CHECK(std::abs(whole[r * dim + c] - Expected(pooling, batch, weighted, r, c)) < 1e-5);
            }
          }
        }
      }
    }
  }
}

// The loss is the sum of the outputs times `grads`.
double Loss(const Pooling& pooling, const Batch& batch, bool weighted, const std::vector<float>& grads) {
  double loss = 0;
  for (size_t r = 0; r + 1 < batch.splits.size(); ++r) {
    for (int c = 0; c < pooling.dim; ++c) {
      loss += grads[r * pooling.dim + c] * Expected(pooling, batch, weighted, r, c);
    }
  }
  return loss;
}

void TestGradients() {
  const int dim = 3;
  for (Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    for (float limit : {-1.0f, 0.7f}) {
      for (bool weighted : {false, true}) {
        Batch batch(dim, kLengths, 3);
        for (size_t i = 0; i < batch.rows.size(); ++i) batch.rows[i] = batch.values[i].data();
        const Pooling pooling{combiner, dim, limit};
        std::vector<float> grads(kLengths.size() * dim);
        for (size_t i = 0; i < grads.size(); ++i) grads[i] = std::sin(1.0f + i);
        std::vector<float> each(batch.rows.size() * dim);
        std::vector<float> of_weights(batch.rows.size(), 0.5f);  // added to
        PoolGradient(pooling, batch.splits.data(), kLengths.size(), batch.rows.data(),
                     weighted ? batch.weights.data() : nullptr, batch.fallback.data(), grads.data(), each.data(),
                     weighted ? of_weights.data() : nullptr);
        const double step = 1e-3;
        const auto slope = [&](float* at) {
          const float before = *at;
          *at = static_cast<float>(before + step);
          const double up = Loss(pooling, batch, weighted, grads);
          *at = static_cast<float>(before - step);
          const double down = Loss(pooling, batch, weighted, grads);
          *at = before;
          return (up - down) / (2 * step);
        };
        for (size_t i = 0; i < batch.rows.size(); ++i) {
          for (int c = 0; c < dim; ++c) CHECK(std::abs(each[i * dim + c] - slope(&batch.values[i][c])) < 2e-3);
          if (weighted) CHECK(std::abs(of_weights[i] - 0.5 - slope(&batch.weights[i])) < 2e-3);
        }
      }
    }
  }
}

void TestWeightsOfZero() {
  Batch batch(2, {2}, 1);
  batch.weights = {0.0f, 0.0f};
  for (Combiner combiner : {Combiner::kMean, Combiner::kSqrtn}) {
    const Pooling pooling{combiner, 2, -1.0f};
    CHECK(Pooled(pooling, batch, true, 10) == std::vector<float>(2, 0.0f));
    std::vector<float> grads{1.0f, 1.0f}, each(4, 7.0f), of_weights(2, 0.0f);
    PoolGradient(pooling, batch.splits.data(), 1, batch.rows.data(), batch.weights.data(), batch.fallback.data(),
                 grads.data(), each.data(), of_weights.data());
    CHECK(each == std::vector<float>(4, 0.0f));
    CHECK(of_weights == std::vector<float>(2, 0.0f));
  }
}

void TestCopies() {
  for (int dim : {1, 3, 4, 8, 16, 32, 64, 65}) {
    const Batch batch(dim, {20}, 9);
    std::vector<float> out(20 * dim);
    CopyRows(Pooling{Combiner::kNone, dim, -1.0f}, batch.rows.data(), 20, batch.fallback.data(), out.data());
    for (size_t i = 0; i < 20; ++i) CHECK(std::equal(batch.row(i), batch.row(i) + dim, out.begin() + i * dim));
    CopyRows(Pooling{Combiner::kNone, dim, 0.25f}, batch.rows.data(), 20, batch.fallback.data(), out.data());
    for (size_t i = 0; i < 20; ++i) {
      double squares = 0;
      for (int c = 0; c < dim; ++c) squares += double{out[i * dim + c]} * out[i * dim + c];
      CHECK(squares < 0.25 * 0.25 * 1.0001);
    }
  }
}

void TestWords() {
  CHECK(ParseCombiner("").value() == Combiner::kNone);
  CHECK(ParseCombiner("sqrtn").value() == Combiner::kSqrtn);
  CHECK_FAILS(ParseCombiner("max").status(), Code::kInvalid, "'max'");
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestValues();
  tfctr::TestGradients();
  tfctr::TestWeightsOfZero();
  tfctr::TestCopies();
  tfctr::TestWords();
  return 0;
}
