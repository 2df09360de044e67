// Time as the dispatcher sees it, so that tests decide what time it is.
//
// Thread-safety: all methods may be called from any thread.
#ifndef TFCTR_CORE_SERVING_CLOCK_H_
#define TFCTR_CORE_SERVING_CLOCK_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tfctr {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds of CLOCK_MONOTONIC: steps of the wall clock do not matter.
  virtual int64_t Now() const = 0;
  // Sleeps until `condition` is notified, `until_ns` has come (0: never), or for no reason at all.
  virtual void Wait(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, int64_t until_ns) = 0;
};

class SteadyClock : public Clock {
 public:
  int64_t Now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void Wait(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, int64_t until_ns) override {
    if (until_ns == 0) return condition.wait(lock);
    condition.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until_ns)));
  }
};

}  // namespace tfctr

#endif  // TFCTR_CORE_SERVING_CLOCK_H_
