// Micro benchmark of the embedding table, without TensorFlow: lookup, insert, bulk write, memory.
//
//   table_bench lookup ROWS DIM uniform|zipf   Mrows/s of Gather, FindOrInsert + CopyRows, and a plain array gather
//   table_bench insert ROWS DIM                growing from empty, batches of 100k, one Adagrad slot
//   table_bench put ROWS DIM
//   table_bench rss adagrad|rowwise|full LAST  grows to LAST rows at dim 16, prints resident bytes / raw bytes
//
// benchmarks/embedding/build.sh builds it. One thread, CPU time (a busy machine
// costs cache and bandwidth, not waiting). Lookup: interleaved rounds, medians.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tfctr/core/storage/embedding_table.h"
#include "tfctr/core/storage/page_memory.h"

namespace tfctr {
namespace {

constexpr size_t kBatch = 100000;

// Of this thread on a core: time in which others had it is not in it.
double CpuSeconds() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double Seconds(const std::function<void()>& run) {
  const double begin = CpuSeconds();
  run();
  return CpuSeconds() - begin;
}

double Median(std::vector<double> of) {
  std::nth_element(of.begin(), of.begin() + static_cast<ptrdiff_t>(of.size() / 2), of.end());
  return of[of.size() / 2];
}

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message.c_str());
  std::exit(1);
}

// Keys that are spread over the whole range.
int64_t KeyOf(uint64_t i) { return static_cast<int64_t>(i * 0x9e3779b97f4a7c15ull ^ 0x5555); }

std::shared_ptr<EmbeddingTable> NewTable(int dim, int slot_width, bool metadata = false) {
  TableConfig config;
  config.name = "bench";
  config.layout = RowLayout::Make(dim, {{"accumulator", slot_width, 0.1f}}, metadata, metadata, false).Take();
  Result<std::shared_ptr<EmbeddingTable>> table = EmbeddingTable::Create(config);
  Check(table.status());
  return table.Take();
}

double Insert(EmbeddingTable* table, size_t from, size_t to) {
  std::vector<int64_t> keys(kBatch);
  std::vector<float*> rows(kBatch);
  double seconds = 0;
  for (size_t at = from; at < to; at += kBatch) {
    const size_t n = std::min(kBatch, to - at);
    for (size_t i = 0; i < n; ++i) keys[i] = KeyOf(at + i);
    seconds += Seconds([&] {
      ReadGuard guard(*table);
      Check(table->FindOrInsert(&guard, keys.data(), n, {}, rows.data()));
    });
  }
  return seconds;
}

// Row numbers, Zipf with exponent 1.05 by inversion of its continuous form, hot rows spread over the table.
std::vector<size_t> Draw(size_t rows, size_t n, bool zipf, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  std::vector<size_t> drawn(n);
  const double s = 1.0 - 1.05;
  const double top = std::pow(static_cast<double>(rows) + 1.0, s) - 1.0;
  for (size_t& row : drawn) {
    if (zipf) {
      const double rank = std::pow(1.0 + unit(random) * top, 1.0 / s) - 1.0;
      row = static_cast<size_t>(static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15ull % rows);
    } else {
      row = random() % rows;
    }
  }
  return drawn;
}

void Lookup(size_t rows, int dim, bool zipf) {
  const auto table = NewTable(dim, dim);
  Insert(table.get(), 0, rows);
  const size_t width = static_cast<size_t>(dim);
  // The static variable: ordinary memory, small pages, as TensorFlow's allocator gives it.
  std::vector<float> dense(rows * width, 1.0f);
  std::vector<float> out(kBatch * width);
  std::vector<float*> found(kBatch);
  std::vector<int64_t> keys(kBatch);
  std::vector<double> gather, insert, plain, find;
  for (int round = 0; round < 60; ++round) {
    const std::vector<size_t> drawn = Draw(rows, kBatch, zipf, static_cast<uint64_t>(round));
    for (size_t i = 0; i < kBatch; ++i) keys[i] = KeyOf(drawn[i]);
    gather.push_back(Seconds([&] {
      ReadGuard guard(*table);
      if (table->Gather(keys.data(), kBatch, out.data()) != kBatch) std::abort();
    }));
    plain.push_back(Seconds([&] {
      for (size_t i = 0; i < kBatch; ++i) {
        if (i + 16 < kBatch) {
          for (size_t j = 0; j < width; j += 16) __builtin_prefetch(&dense[drawn[i + 16] * width + j]);
        }
        std::memcpy(&out[i * width], &dense[drawn[i] * width], width * sizeof(float));
      }
    }));
    find.push_back(Seconds([&] {
      ReadGuard guard(*table);
      for (size_t at = 0; at < kBatch; at += EmbeddingTable::kFindBlock) {
        const size_t n = std::min(kBatch - at, EmbeddingTable::kFindBlock);
        table->Find(&keys[at], n, found.data());
        table->CopyRows(found.data(), n, &out[at * width]);
      }
    }));
    insert.push_back(Seconds([&] {
      ReadGuard guard(*table);
      Check(table->FindOrInsert(&guard, keys.data(), kBatch, {}, found.data()));
      table->CopyRows(found.data(), kBatch, out.data());
    }));
  }
  const auto rate = [](const std::vector<double>& of) { return kBatch / Median(of) / 1e6; };
  std::printf("lookup %zu x %d %s: gather %.1f, find+copy %.1f, training %.1f, plain array %.1f Mrows/s\n", rows, dim,
              zipf ? "zipf" : "uniform", rate(gather), rate(find), rate(insert), rate(plain));
}

struct Memory {
  double resident = 0;
  double peak = 0;
};

Memory Resident() {
  Memory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) memory.resident = std::atof(line.c_str() + 6) * 1024;
    if (line.rfind("VmHWM:", 0) == 0) memory.peak = std::atof(line.c_str() + 6) * 1024;
  }
  return memory;
}

// Resident memory over what the rows need, at many sizes; the peak (of any size so far) over what the rows need at the
// moment it was reached is bounded by the sampling after each batch.
void Rss(const std::string& kind, size_t last) {
  const bool full = kind == "full";
  const auto table = NewTable(16, kind == "rowwise" ? 1 : 16, full);
  const double raw = 8 + 4.0 * (16 + (kind == "rowwise" ? 1 : 16)) + (full ? 12 : 0);
  std::vector<int64_t> keys(kBatch);
  std::vector<float*> found(kBatch);
  Insert(table.get(), 0, 1);
  const double base = Resident().resident;
  double worst = 0, worst_peak = 0, worst_bytes = 0;
  size_t worst_at = 0, worst_peak_at = 0;
  for (size_t at = 0; at < last; at += kBatch) {
    std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
    Insert(table.get(), at, at + kBatch);
    if (at + kBatch < 1000000) continue;
    const Memory memory = Resident();
    const double rows = static_cast<double>(at + kBatch);
    const double ratio = (memory.resident - base) / (rows * raw);
    const double peak = (memory.peak - base) / (rows * raw);
    if (ratio > worst) worst = ratio, worst_at = at + kBatch;
    if (peak > worst_peak) worst_peak = peak, worst_peak_at = at + kBatch;
    worst_bytes = std::max(worst_bytes, static_cast<double>(table->bytes()) / (rows * raw));
    if ((at + kBatch) % 2000000 == 0) std::printf("  %zu rows: %.3f, peak %.3f\n", at + kBatch, ratio, peak);
  }
  std::printf("rss %s: worst %.3f at %zu rows, peak while growing %.3f at %zu, bytes() at most %.3f\n", kind.c_str(),
              worst, worst_at, worst_peak, worst_peak_at, worst_bytes);
}

void Put(size_t rows, int dim) {
  const size_t slice = 65536, width = static_cast<size_t>(dim);
  std::vector<float> values(slice * width, 0.5f), slots(slice * width, 0.1f);
  std::vector<int64_t> keys(slice);
  for (const bool reserve : {false, true}) {
    const auto table = NewTable(dim, dim);
    double seconds = 0;
    if (reserve) seconds += Seconds([&] { Check(table->Reserve(rows)); });
    for (size_t at = 0; at < rows; at += slice) {
      const size_t n = std::min(slice, rows - at);
      for (size_t i = 0; i < n; ++i) keys[i] = KeyOf(at + i);
      RowColumns columns;
      columns.values = values.data();
      columns.slots = {slots.data()};
      seconds += Seconds([&] { Check(table->Put(keys.data(), n, columns)); });
    }
    std::printf("put %zu x %d%s: %.2f Mrows/s\n", rows, dim, reserve ? ", reserved" : "",
                static_cast<double>(rows) / seconds / 1e6);
    if (!reserve) continue;
    seconds = 0;
    for (size_t at = 0; at < rows; at += slice) {
      const size_t n = std::min(slice, rows - at);
      for (size_t i = 0; i < n; ++i) keys[i] = KeyOf(at + i);
      seconds += Seconds([&] { Check(table->Put(keys.data(), n, RowColumns())); });
    }
    std::printf("put %zu x %d, initial values over rows that are there: %.2f Mrows/s\n", rows, dim,
                static_cast<double>(rows) / seconds / 1e6);
  }
}

}  // namespace
}  // namespace tfctr

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const size_t rows = argc > 2 ? static_cast<size_t>(std::atoll(argv[2])) : 0;
  if (what == "lookup" && argc == 5) {
    tfctr::Lookup(rows, std::atoi(argv[3]), std::string(argv[4]) == "zipf");
  } else if (what == "insert" && argc == 4) {
    const auto table = tfctr::NewTable(std::atoi(argv[3]), std::atoi(argv[3]));
    const double seconds = tfctr::Insert(table.get(), 0, rows);
    std::printf("insert %zu x %s: %.2f Mrows/s\n", rows, argv[3], static_cast<double>(rows) / seconds / 1e6);
  } else if (what == "put" && argc == 4) {
    tfctr::Put(rows, std::atoi(argv[3]));
  } else if (what == "rss" && argc == 4) {
    tfctr::Rss(argv[2], static_cast<size_t>(std::atoll(argv[3])));
  } else {
    std::fprintf(stderr,
                 "usage: table_bench lookup ROWS DIM uniform|zipf | insert ROWS DIM | put ROWS DIM | "
                 "rss adagrad|rowwise|full LAST\n");
    return 2;
  }
  return 0;
}
