// Micro benchmark of what is computed on rows of an embedding table, without the table and without TensorFlow:
//
//   rows_bench init      nanoseconds per row of initial values, by kind, dimension and instruction set
//   rows_bench update    nanoseconds per row of every optimizer: rows in cache, and random rows of 2 GB
//   rows_bench sum       nanoseconds per key of summing the gradients of equal keys
//
// benchmarks/embedding/build.sh builds it. One thread; the least of many rounds.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tfctr/core/embedding/gradient_sum.h"
#include "tfctr/core/embedding/optimizers.h"
#include "tfctr/core/storage/row_initializer.h"

namespace tfctr {
namespace {

constexpr size_t kHot = 256;
constexpr size_t kCold = 26 * 1024;
constexpr size_t kMemory = size_t{2} << 30;

double LeastNanoseconds(int rounds, size_t per_round, const std::function<void(int)>& run) {
  double least = 1e18;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    run(round);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count());
  }
  return least / static_cast<double>(per_round);
}

void Init() {
  for (const auto kind : {InitializerConfig::Kind::kUniform, InitializerConfig::Kind::kNormal}) {
    for (const int dim : {4, 8, 16, 32, 64, 100}) {
      std::vector<int64_t> keys(kHot);
      std::vector<float> values(kHot * static_cast<size_t>(dim));
      std::vector<float*> rows;
      for (size_t i = 0; i < kHot; ++i) {
        keys[i] = static_cast<int64_t>(i * 0x9e3779b97f4a7c15u);
        rows.push_back(values.data() + i * static_cast<size_t>(dim));
      }
      std::printf("%s dim %d:", kind == InitializerConfig::Kind::kUniform ? "uniform" : "normal", dim);
      for (int isa = 0; isa <= static_cast<int>(DetectedIsa()); ++isa) {
        const RowInitializer init({kind, -0.05f, 0.05f, 1}, dim, static_cast<Isa>(isa));
        const double ns = LeastNanoseconds(2000, kHot, [&](int) { init.Fill(keys.data(), kHot, rows.data()); });
        std::printf("  %s %.1f ns", IsaName(static_cast<Isa>(isa)), ns);
      }
      std::printf("\n");
    }
  }
}

void Update() {
  void* const mapped =
      ::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  ::madvise(mapped, kMemory, MADV_HUGEPAGE);
  float* const memory = static_cast<float*>(mapped);
  for (size_t i = 0; i < kMemory / sizeof(float); ++i) memory[i] = 0.1f;
  std::mt19937_64 random(1);
  for (const char* name :
       {"sgd", "adagrad", "rowwise_adagrad", "adam", "adamw", "lazy_adam", "ftrl", "adagrad_decay"}) {
    OptimizerConfig config;
    config.kind = OptimizerKind(name).value();
    for (const int dim : {1, 4, 10, 16, 64}) {
      const RowLayout layout = RowLayout::Make(dim, SlotsOf(config, dim), false, false, false).Take();
      const size_t floats = layout.stride() / sizeof(float);
      const size_t table = kMemory / layout.stride();
      const std::vector<float> grads(kCold * static_cast<size_t>(dim), 0.01f);
      std::vector<std::vector<float*>> rows(16, std::vector<float*>(kCold));
      for (auto& batch : rows) {
        for (float*& row : batch) row = memory + random() % table * floats;
      }
      const auto apply = [&](size_t batch, size_t n) {
        ApplyRows(config, layout, UpdateStep{0.01f, 5}, rows[batch].data(), grads.data(), n);
      };
      const double hot = LeastNanoseconds(500, kHot, [&](int) { apply(0, kHot); });
      const double cold =
          LeastNanoseconds(64, kCold, [&](int round) { apply(static_cast<size_t>(round) % 16, kCold); });
      std::printf("%s dim %d: in cache %.1f ns, random %.1f ns\n", name, dim, hot, cold);
    }
  }
}

void Sum() {
  std::mt19937_64 random(1);
  for (const size_t n : {size_t{1024}, size_t{26624}}) {
    for (const uint64_t range : {uint64_t{300}, uint64_t{1} << 40}) {
      std::vector<int64_t> keys(n);
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % range);
      const std::vector<float> grads(n * 16, 0.5f);
      GradientSum sum;
      bool finite = true;
      const double ns =
          LeastNanoseconds(300, n, [&](int) { finite &= sum.Sum(keys.data(), n, grads.data(), 16).ok(); });
      std::printf("%zu keys, %zu distinct, dim 16: %.1f ns a key%s\n", n, sum.size(), ns,
                  finite ? "" : " (not finite)");
    }
  }
}

}  // namespace
}  // namespace tfctr

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what == "init") {
    tfctr::Init();
  } else if (what == "update") {
    tfctr::Update();
  } else if (what == "sum") {
    tfctr::Sum();
  } else {
    std::fprintf(stderr, "usage: rows_bench init|update|sum\n");
    return 2;
  }
}
