#include "tfctr/core/serving/histogram.h"

#include <algorithm>
#include <utility>

namespace tfctr {

namespace {

constexpr int64_t kUnused = INT64_MAX;

// A number of this thread; threads are spread over the shards in the order of their first addition.
size_t ShardOfThread() {
  static std::atomic<size_t> threads{0};
  static thread_local const size_t shard = threads.fetch_add(1, std::memory_order_relaxed);
  return shard;
}

template <size_t... kIndex>
std::array<Histogram, sizeof...(kIndex)> MakeTimes(std::index_sequence<kIndex...>) {
  return {((void)kIndex, Histogram(Histogram::Durations(), 1e-9))...};
}

}  // namespace

const Histogram::Edges& Histogram::Durations() {
  static constexpr Edges kEdges = {10'000,      20'000,        50'000,        100'000,       200'000,       500'000,
                                   1'000'000,   2'000'000,     3'000'000,     5'000'000,     7'500'000,     10'000'000,
                                   15'000'000,  20'000'000,    30'000'000,    50'000'000,    100'000'000,   200'000'000,
                                   500'000'000, 1'000'000'000, 2'000'000'000, 5'000'000'000, 10'000'000'000};
  return kEdges;
}

const Histogram::Edges& Histogram::Sizes() {
  static constexpr Edges kEdges = {1,     2,       4,       8,       16,      32,      64,     128,
                                   256,   512,     1024,    2048,    4096,    8192,    16384,  32768,
                                   65536, kUnused, kUnused, kUnused, kUnused, kUnused, kUnused};
  return kEdges;
}

void Histogram::Add(int64_t value) {
  const auto bucket = static_cast<size_t>(std::lower_bound(edges_.begin(), edges_.end(), value) - edges_.begin());
  Shard& shard = shards_[ShardOfThread() % kShards];
  shard.counts[bucket].fetch_add(1, std::memory_order_relaxed);
  shard.sum.fetch_add(value, std::memory_order_relaxed);
}

HistogramCounts Histogram::Read() const {
  HistogramCounts read;
  for (const int64_t edge : edges_) {
    if (edge != kUnused) read.buckets.push_back(static_cast<double>(edge) * unit_);
  }
  read.counts.assign(read.buckets.size() + 1, 0);
  for (const Shard& shard : shards_) {
    for (size_t i = 0; i < shard.counts.size(); ++i) {
      // Of the edges that are not used, only the first has a bucket: the open one.
      read.counts[std::min(i, read.buckets.size())] += shard.counts[i].load(std::memory_order_relaxed);
    }
    read.sum += static_cast<double>(shard.sum.load(std::memory_order_relaxed)) * unit_;
  }
  return read;
}

const char* GroupMetrics::TimeName(Time time) {
  static constexpr std::array<const char*, kTimes> kNames = {"request", "parse",  "pack",  "queue", "batch",
                                                             "run",     "lookup", "dense", "split", "reply"};
  return kNames[static_cast<size_t>(time)];
}

GroupMetrics::GroupMetrics()
    : times_(MakeTimes(std::make_index_sequence<kTimes>())),
      batch_rows_(Histogram::Sizes(), 1),
      batch_requests_(Histogram::Sizes(), 1) {}

void GroupMetrics::AddRun(int64_t rows, int64_t requests, const StepRecord& record) {
  if (!enabled()) return;
  batch_rows_.Add(rows);
  batch_requests_.Add(requests);
  const std::vector<TableCounts>& tables = record.tables();
  if (tables.empty()) return;
  const std::lock_guard<std::mutex> lock(tables_mutex_);
  if (tables_.size() < tables.size()) tables_.resize(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    tables_[i].lookups += tables[i].lookups;
    tables_[i].default_rows += tables[i].default_rows;
  }
}

GroupMetrics::Reading GroupMetrics::Read() const {
  Reading reading;
  for (int i = 0; i < kTimes; ++i) {
    reading.times.emplace_back(TimeName(static_cast<Time>(i)), times_[static_cast<size_t>(i)].Read());
  }
  for (int i = 0; i < kFailCodes; ++i) {
    const int64_t count = requests_[static_cast<size_t>(i)].load(std::memory_order_relaxed);
    if (count > 0) reading.requests[FailCodeName(static_cast<FailCode>(i))] = count;
  }
  reading.batch_rows = batch_rows_.Read();
  reading.batch_requests = batch_requests_.Read();
  std::vector<TableCounts> tables;
  {
    const std::lock_guard<std::mutex> lock(tables_mutex_);
    tables = tables_;
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].lookups > 0) reading.tables[StepRecord::TableName(i)] = tables[i];
  }
  return reading;
}

}  // namespace tfctr
