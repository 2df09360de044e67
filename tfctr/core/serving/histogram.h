// Lock-free histograms with fixed buckets, and what one group of executors counts.
//
// Thread-safety: Add may be called by any number of threads, Read at the same time; a reading may miss what is being
// added, and never loses or invents anything. Cost of Add: a search over about twenty edges and two relaxed additions
// in memory that few other threads write to.
#ifndef TFCTR_CORE_SERVING_HISTOGRAM_H_
#define TFCTR_CORE_SERVING_HISTOGRAM_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tfctr/core/profiling/step_record.h"
#include "tfctr/core/serving/call.h"

namespace tfctr {

struct HistogramCounts {
  std::vector<double> buckets;  // upper edges, rising; values equal to an edge are in its bucket
  std::vector<int64_t> counts;  // of each bucket, not cumulated; one more than edges: the last is open
  double sum = 0;
};

class Histogram {
 public:
  static constexpr size_t kMaxEdges = 23;
  using Edges = std::array<int64_t, kMaxEdges>;  // unused ones: INT64_MAX

  // `unit`: what one of the values is in what is read (1e-9: nanoseconds are read as seconds).
  Histogram(const Edges& edges, double unit) : edges_(edges), unit_(unit) {}
  Histogram(const Histogram&) = delete;
  Histogram& operator=(const Histogram&) = delete;

  void Add(int64_t value);
  HistogramCounts Read() const;

  // 10 us to 10 s, values in nanoseconds.
  static const Edges& Durations();
  // Powers of two from 1 to 65536.
  static const Edges& Sizes();

 private:
  static constexpr size_t kShards = 4;
  struct alignas(64) Shard {
    std::array<std::atomic<int64_t>, kMaxEdges + 1> counts{};
    std::atomic<int64_t> sum{0};
  };

  const Edges& edges_;
  const double unit_;
  std::array<Shard, kShards> shards_;
};

// Everything that one group counts of its requests and runs.
class GroupMetrics {
 public:
  enum class Time : uint8_t { kRequest, kParse, kPack, kQueue, kBatch, kRun, kLookup, kDense, kSplit, kReply };
  static constexpr int kTimes = 10;
  static const char* TimeName(Time time);

  struct Reading {
    std::vector<std::pair<std::string, HistogramCounts>> times;  // by name of the stage
    std::map<std::string, int64_t> requests;                     // by code, "OK" included; only those that were seen
    HistogramCounts batch_rows;
    HistogramCounts batch_requests;
    std::map<std::string, TableCounts> tables;
  };

  GroupMetrics();
  GroupMetrics(const GroupMetrics&) = delete;
  GroupMetrics& operator=(const GroupMetrics&) = delete;

  // Off: nothing is added (what was counted stays), and no record need be kept of runs.
  void set_enabled(bool enabled) { enabled_.store(enabled, std::memory_order_relaxed); }
  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

  void Add(Time time, int64_t ns) {
    if (enabled()) times_[static_cast<size_t>(time)].Add(ns);
  }
  void AddRequest(FailCode code) {
    if (enabled()) requests_[static_cast<size_t>(code)].fetch_add(1, std::memory_order_relaxed);
  }
  // One run: what went into it, and what its ops counted.
  void AddRun(int64_t rows, int64_t requests, const StepRecord& record);

  Reading Read() const;

 private:
  std::atomic<bool> enabled_{true};
  std::array<Histogram, kTimes> times_;
  std::array<std::atomic<int64_t>, kFailCodes> requests_{};
  Histogram batch_rows_;
  Histogram batch_requests_;
  mutable std::mutex tables_mutex_;  // held once per run, for a few additions
  std::vector<TableCounts> tables_;  // by StepRecord::TableNumber
};

}  // namespace tfctr

#endif  // TFCTR_CORE_SERVING_HISTOGRAM_H_
