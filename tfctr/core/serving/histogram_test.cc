// Histograms and the counters of a group: edges, sums, and readings while other threads add.
#include "tfctr/core/serving/histogram.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "tfctr/core/test_check.h"

namespace tfctr {
namespace {

int64_t Total(const HistogramCounts& read) {
  return std::accumulate(read.counts.begin(), read.counts.end(), int64_t{0});
}

void TestEdgesBelongToTheirBucket() {
  Histogram histogram(Histogram::Durations(), 1e-9);
  for (const int64_t ns : {int64_t{0}, int64_t{10'000}, int64_t{10'001}, int64_t{10'000'000'000}, INT64_MAX / 4}) {
    histogram.Add(ns);
  }
  const HistogramCounts read = histogram.Read();
  CHECK(read.counts.size() == read.buckets.size() + 1);
  CHECK(std::abs(read.buckets.front() - 1e-5) < 1e-12);
  CHECK(std::abs(read.buckets.back() - 10.0) < 1e-6);
  CHECK(read.counts[0] == 2);
  CHECK(read.counts[1] == 1);
  CHECK(read.counts[read.buckets.size() - 1] == 1);
  CHECK(read.counts.back() == 1);
  for (size_t i = 1; i < read.buckets.size(); ++i) CHECK(read.buckets[i] > read.buckets[i - 1]);
}

void TestSizesHaveOneOpenBucket() {
  Histogram histogram(Histogram::Sizes(), 1);
  for (const int64_t rows : {1, 2, 3, 4, 65536, 65537, 1 << 30}) histogram.Add(rows);
  const HistogramCounts read = histogram.Read();
  CHECK(read.buckets.size() == 17);
  CHECK(read.counts.size() == 18);
  CHECK(read.counts[0] == 1 && read.counts[1] == 1 && read.counts[2] == 2 && read.counts[16] == 1);
  CHECK(read.counts.back() == 2);
  CHECK(read.sum == 1 + 2 + 3 + 4 + 65536 + 65537 + (1 << 30));
}

void TestGroupCounts() {
  GroupMetrics metrics;
  StepRecord record;
  record.AddTable(StepRecord::TableNumber("histogram_test/users"), 10, 3);
  record.AddTable(StepRecord::TableNumber("histogram_test/items"), 5, 0);
  metrics.AddRun(8, 2, record);
  metrics.AddRun(8, 2, record);
  metrics.Add(GroupMetrics::Time::kQueue, 30'000'000);
  metrics.AddRequest(FailCode::kOk);
  metrics.AddRequest(FailCode::kOk);
  metrics.AddRequest(FailCode::kDeadlineExceeded);
  metrics.set_enabled(false);
  metrics.AddRun(8, 2, record);
  metrics.AddRequest(FailCode::kOk);
  metrics.Add(GroupMetrics::Time::kQueue, 1);
  const GroupMetrics::Reading reading = metrics.Read();
  CHECK(reading.tables.at("histogram_test/users").lookups == 20);
  CHECK(reading.tables.at("histogram_test/users").default_rows == 6);
  CHECK(reading.tables.at("histogram_test/items").default_rows == 0);
  CHECK(reading.requests.size() == 2);
  CHECK(reading.requests.at(FailCodeName(FailCode::kOk)) == 2);
  CHECK(reading.requests.at("DEADLINE_EXCEEDED") == 1);
  CHECK(Total(reading.batch_rows) == 2 && reading.batch_rows.sum == 16);
  for (const auto& [name, counts] : reading.times) CHECK(Total(counts) == (name == "queue" ? 1 : 0));
}

void TestNothingIsLostBetweenThreads() {
  GroupMetrics metrics;
  constexpr int kThreads = 6, kAdds = 5000;
  const size_t table = StepRecord::TableNumber("histogram_test/shared");
  std::atomic<bool> done{false};
  std::thread reader([&] {
    int64_t before = 0;
    while (!done.load()) {
      const GroupMetrics::Reading reading = metrics.Read();
      const int64_t now = Total(reading.times[0].second);
      CHECK(now >= before);
      before = now;
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&metrics, table, t] {
      StepRecord record;
      const ScopedStep step(&record);
      for (int i = 0; i < kAdds; ++i) {
        record.Clear();
        StepRecord::Current()->AddTable(table, 2, 1);
        metrics.Add(GroupMetrics::Time::kRequest, int64_t{t} * 1'000'000 + i);
        metrics.AddRequest(FailCode::kOk);
        metrics.AddRun(1, 1, record);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  reader.join();
  const GroupMetrics::Reading reading = metrics.Read();
  CHECK(Total(reading.times[0].second) == kThreads * kAdds);
  CHECK(reading.requests.at("OK") == kThreads * kAdds);
  CHECK(reading.batch_requests.sum == kThreads * kAdds);
  CHECK(reading.tables.at("histogram_test/shared").lookups == 2 * kThreads * kAdds);
  CHECK(reading.tables.at("histogram_test/shared").default_rows == kThreads * kAdds);
}

void TestRecordsBelongToThreadsAndNest() {
  CHECK(StepRecord::Current() == nullptr);
  StepRecord outer, inner;
  {
    const ScopedStep first(&outer);
    {
      const ScopedStep second(&inner);
      const StepTimer timer(StepPart::kLookup);
      CHECK(StepRecord::Current() == &inner && timer.record() == &inner);
      std::thread([] { CHECK(StepRecord::Current() == nullptr); }).join();
    }
    CHECK(StepRecord::Current() == &outer);
  }
  CHECK(StepRecord::Current() == nullptr);
  CHECK(inner.lookup_ns > 0 && outer.lookup_ns == 0);
  const auto start = std::chrono::steady_clock::now();
  {
    const ScopedStep step(&outer);
    const StepTimer timer(StepPart::kPack);
    const auto inside = std::chrono::steady_clock::now();  // not `start`: the thread may have lost its turn since
    while (std::chrono::steady_clock::now() - inside < std::chrono::milliseconds(2)) {
    }
  }
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start;
  CHECK(outer.pack_ns > 1'800'000 && static_cast<double>(outer.pack_ns) < static_cast<double>(took.count()) * 1.1);
  {
    const StepTimer timer(StepPart::kDense);
  }  // nobody wants to know
  CHECK(inner.dense_ns == 0 && outer.dense_ns == 0);
  inner.AddTable(StepRecord::TableNumber("histogram_test/users"), 1, 1);
  inner.Clear();
  CHECK(inner.lookup_ns == 0);
  for (const TableCounts& counts : inner.tables()) CHECK(counts.lookups == 0 && counts.default_rows == 0);
  CHECK(StepRecord::TableName(SIZE_MAX).empty());
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestEdgesBelongToTheirBucket();
  tfctr::TestSizesHaveOneOpenBucket();
  tfctr::TestGroupCounts();
  tfctr::TestNothingIsLostBetweenThreads();
  tfctr::TestRecordsBelongToThreadsAndNest();
  std::puts("histogram_test: ok");
}
