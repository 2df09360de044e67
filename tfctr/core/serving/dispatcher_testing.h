// What the tests of the dispatcher share: a clock that the test sets, and a gate that holds executors until the test
// opens it. No sleeps.
#ifndef TFCTR_CORE_SERVING_DISPATCHER_TESTING_H_
#define TFCTR_CORE_SERVING_DISPATCHER_TESTING_H_

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tfctr/core/serving/dispatcher.h"
#include "tfctr/core/serving/fake_clock.h"
#include "tfctr/core/test_check.h"

namespace tfctr {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kStart = 1000 * kMs;

struct NumberPiece : Piece {
  int number = 0;
};

// Runs wait at the gate until it is open.
class TestRunner : public Runner {
 public:
  Outcome Run(int executor, const std::vector<Piece*>& pieces) override {
    std::vector<int> numbers;
    for (Piece* piece : pieces) numbers.push_back(static_cast<NumberPiece*>(piece)->number);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      batches_.push_back(numbers);
      executors_.push_back(executor);
      changed_.notify_all();
      changed_.wait(lock, [this] { return open_; });
    }
    return act ? act(executor, pieces) : Outcome::kDone;
  }

  void SetOpen(bool open) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  void WaitForRuns(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() >= count; });
  }
  std::vector<std::vector<int>> batches() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }
  std::vector<int> executors() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return executors_;
  }

  std::function<Outcome(int, const std::vector<Piece*>&)> act;  // after the gate

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  std::vector<std::vector<int>> batches_;
  std::vector<int> executors_;
};

struct Scene {
  explicit Scene(DispatcherOptions options = {}) {
    std::string error;
    dispatcher = Dispatcher::Start(options, &runner, &clock, &error);
    CHECK_EQ(error, std::string());
  }
  ~Scene() { runner.SetOpen(true); }

  // A request of one piece, on a thread of its own.
  std::future<Failure> Send(int number, std::shared_ptr<Call> call, int64_t rows = 1, uint64_t lane = 1) {
    return std::async(std::launch::async, [this, number, rows, lane, call = std::move(call)] {
      return dispatcher->Run(call, Pieces({number}, rows, lane));
    });
  }
  // The same, and waits until it is in the queue.
  std::future<Failure> Queue(int number, std::shared_ptr<Call> call, int64_t rows = 1, uint64_t lane = 1) {
    const int64_t before = dispatcher->waiting();
    std::future<Failure> future = Send(number, std::move(call), rows, lane);
    while (dispatcher->waiting() == before) std::this_thread::yield();
    return future;
  }
  static std::vector<std::unique_ptr<Piece>> Pieces(const std::vector<int>& numbers, int64_t rows = 1,
                                                    uint64_t lane = 1) {
    std::vector<std::unique_ptr<Piece>> pieces;
    for (const int number : numbers) {
      auto piece = std::make_unique<NumberPiece>();
      piece->number = number;
      piece->rows = rows;
      piece->lane = lane;
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }
  // Occupies the executor with request 0; the gate is closed.
  std::future<Failure> Block() {
    const size_t before = runner.batches().size();
    runner.SetOpen(false);
    std::future<Failure> future = Send(0, NewCall());
    runner.WaitForRuns(before + 1);
    return future;
  }
  static std::shared_ptr<Call> NewCall(int64_t deadline = 0, int priority = 0) {
    return std::make_shared<Call>(deadline, priority);
  }

  FakeClock clock{kStart};
  TestRunner runner;
  std::shared_ptr<Dispatcher> dispatcher;
};

inline DispatcherOptions Batching(int64_t rows, int64_t delay_ns = 0, int executors = 1) {
  DispatcherOptions options;
  options.executors = executors;
  options.policy.max_batch_rows = rows;
  options.policy.max_delay_ns = delay_ns;
  return options;
}

using Batches = std::vector<std::vector<int>>;

}  // namespace tfctr

#endif  // TFCTR_CORE_SERVING_DISPATCHER_TESTING_H_
