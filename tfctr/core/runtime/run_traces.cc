#include "tfctr/core/runtime/run_traces.h"

#include <utility>

namespace tfctr {

void RunTraces::Start(int64_t every, int64_t room) {
  const std::lock_guard<std::mutex> lock(mutex_);
  room_ = room;
  seen_.store(0);
  owed_.store(false);
  every_.store(every);
}

void RunTraces::Stop() {
  std::deque<std::unique_ptr<RunTrace>> forgotten;  // ends without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  every_.store(0);
  forgotten.swap(waiting_);
}

bool RunTraces::Due(int64_t requests) {
  const int64_t every = every_.load(std::memory_order_relaxed);
  if (every == 0) return false;
  const int64_t before = seen_.fetch_add(requests, std::memory_order_relaxed);
  const int64_t next = (before + every - 1) / every * every;
  return next < before + requests ||
         (owed_.load(std::memory_order_relaxed) && owed_.exchange(false, std::memory_order_relaxed));
}

bool RunTraces::Reserve() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (static_cast<int64_t>(waiting_.size()) + reserved_ >= room_) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  ++reserved_;
  return true;
}

void RunTraces::Add(std::unique_ptr<RunTrace> trace) {
  traced_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  --reserved_;
  if (every_.load() != 0) waiting_.push_back(std::move(trace));
}

void RunTraces::Fail() {
  CountFailed();
  const std::lock_guard<std::mutex> lock(mutex_);
  --reserved_;
}

std::unique_ptr<RunTrace> RunTraces::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (waiting_.empty()) return nullptr;
  std::unique_ptr<RunTrace> trace = std::move(waiting_.front());
  waiting_.pop_front();
  return trace;
}

TraceCounts RunTraces::Counts() const {
  TraceCounts counts;
  counts.every = every_.load();
  counts.traced = traced_.load();
  counts.dropped = dropped_.load();
  counts.failed = failed_.load();
  const std::lock_guard<std::mutex> lock(mutex_);
  counts.waiting = static_cast<int64_t>(waiting_.size());
  return counts;
}

}  // namespace tfctr
