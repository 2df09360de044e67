// Which runs of a group are traced, and what was recorded of them until somebody takes it.
//
// Thread-safety: all methods may be called from any thread. Cost: of a run while tracing is off one relaxed load, of
// one that is not traced one atomic addition; the lock is held for a few instructions.
#ifndef TFCTR_CORE_RUNTIME_RUN_TRACES_H_
#define TFCTR_CORE_RUNTIME_RUN_TRACES_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/protobuf/config.pb.h"
#include "tfctr/core/runtime/signature_runner.h"

namespace tfctr {

// Nanoseconds, as in Timing.
struct TracedRequest {
  std::string id;  // as its client knows it
  int64_t rows = 0, parse_ns = 0, pack_ns = 0, queue_ns = 0;
};

// One run, of one request or of several that went together.
struct RunTrace {
  std::shared_ptr<const TracedForm> form;
  std::string signature;
  bool split = false;
  int executor = -1;
  int64_t thread = 0;    // of the kernel, that it ran on
  int64_t start_ns = 0;  // Unix time
  int64_t rows = 0;
  int64_t batch_ns = 0, run_ns = 0, lookup_ns = 0, dense_ns = 0;
  std::vector<TracedRequest> requests;
  tensorflow::RunMetadata metadata;
};

struct TraceCounts {
  int64_t every = 0;    // 0: off
  int64_t traced = 0;   // runs
  int64_t dropped = 0;  // were due, and there was no room
  int64_t failed = 0;   // the run failed, or it can't be traced
  int64_t waiting = 0;  // to be taken
};

class RunTraces {
 public:
  // From the next request on; the first one is due. At most `room` traces wait.
  void Start(int64_t every, int64_t room);
  // Forgets what waits.
  void Stop();
  bool on() const { return every_.load(std::memory_order_relaxed) != 0; }

  // Whether a run of this many requests is due: one of them is the first, or the N-th after one that was.
  bool Due(int64_t requests);
  // The run that was due could not be traced yet: the next one is due.
  void Owe() { owed_.store(true, std::memory_order_relaxed); }
  // Room for one trace, to be filled by Add or given back by Fail; false: there is none, which is counted.
  bool Reserve();
  void Add(std::unique_ptr<RunTrace> trace);
  void Fail();
  // A run that was due and never can be traced.
  void CountFailed() { failed_.fetch_add(1, std::memory_order_relaxed); }

  // The oldest; nullptr: there is none.
  std::unique_ptr<RunTrace> Take();
  TraceCounts Counts() const;

 private:
  std::atomic<int64_t> every_{0};
  std::atomic<int64_t> seen_{0};
  std::atomic<bool> owed_{false};
  std::atomic<int64_t> traced_{0}, dropped_{0}, failed_{0};
  mutable std::mutex mutex_;
  int64_t room_ = 0;
  int64_t reserved_ = 0;
  std::deque<std::unique_ptr<RunTrace>> waiting_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_RUN_TRACES_H_
