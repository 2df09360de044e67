// A clock whose time tests set.
#ifndef TFCTR_CORE_SERVING_FAKE_CLOCK_H_
#define TFCTR_CORE_SERVING_FAKE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "tfctr/core/serving/clock.h"

namespace tfctr {

class FakeClock : public Clock {
 public:
  explicit FakeClock(int64_t now_ns) : now_ns_(now_ns) {}
  int64_t Now() const override { return now_ns_.load(); }
  void Advance(int64_t ns) { now_ns_.fetch_add(ns); }
  // Who waits looks at the time again after a millisecond of real time at most: Advance need not know who that is.
  void Wait(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, int64_t until_ns) override {
    if (until_ns != 0 && Now() >= until_ns) return;
    condition.wait_for(lock, std::chrono::milliseconds(1));
  }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_SERVING_FAKE_CLOCK_H_
