// Requests, executors and a clock that the test sets: deadlines, cancellation, limits, batches, failures. No sleeps: a
// gate holds executors until the test opens it.
#include "tfctr/core/serving/dispatcher.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tfctr/core/serving/fake_clock.h"
#include "tfctr/core/serving/test_check.h"

namespace tfctr {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kStart = 1000 * kMs;

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
    runner.SetOpen(false);
    std::future<Failure> future = Send(0, NewCall());
    runner.WaitForRuns(1);
    return future;
  }
  static std::shared_ptr<Call> NewCall(int64_t deadline = 0, int priority = 0) {
    return std::make_shared<Call>(deadline, priority);
  }

  FakeClock clock{kStart};
  TestRunner runner;
  std::shared_ptr<Dispatcher> dispatcher;
};

DispatcherOptions Batching(int64_t rows, int64_t delay_ns = 0, int executors = 1) {
  DispatcherOptions options;
  options.executors = executors;
  options.policy.max_batch_rows = rows;
  options.policy.max_delay_ns = delay_ns;
  return options;
}

using Batches = std::vector<std::vector<int>>;

void TestOneRequest() {
  Scene scene;
  const auto call = Scene::NewCall();
  CHECK(scene.dispatcher->Run(call, Scene::Pieces({5}, 3)).ok());
  CHECK(scene.runner.batches() == Batches({{5}}));
  CHECK_EQ(call->pieces()[0]->batch_rows, 3);
  CHECK_EQ(call->pieces()[0]->executor, 0);
  const ExecutorCounts counts = scene.dispatcher->Counts()[0];
  CHECK_EQ(counts.runs, 1);
  CHECK_EQ(counts.rows, 3);
  CHECK_EQ(counts.running, 0);
  CHECK(call->Claim());
  CHECK(!call->Claim());
}

void TestFifoAndPriorities() {
  Scene scene;
  auto blocked = scene.Block();
  std::vector<std::future<Failure>> sent;
  sent.push_back(scene.Queue(1, Scene::NewCall()));
  sent.push_back(scene.Queue(2, Scene::NewCall(0, 5)));
  sent.push_back(scene.Queue(3, Scene::NewCall()));
  sent.push_back(scene.Queue(4, Scene::NewCall(0, 5)));
  sent.push_back(scene.Queue(5, Scene::NewCall(0, -1)));
  scene.runner.SetOpen(true);
  for (auto& one : sent) CHECK(one.get().ok());
  CHECK(scene.runner.batches() == Batches({{0}, {2}, {4}, {1}, {3}, {5}}));
}

// A burst of 100 beside one that runs, with room for 10.
void TestQueueLimitIsExact() {
  DispatcherOptions options;
  options.queue_limit = 10;
  Scene scene(options);
  auto blocked = scene.Block();
  std::atomic<int> refused{0}, answered{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 100; ++i) {
    threads.emplace_back([&] {
      const Failure failure = scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1}));
      CHECK(failure.ok() || failure.code == FailCode::kResourceExhausted);
      ++(failure.ok() ? answered : refused);
    });
  }
  while (refused.load() < 90) std::this_thread::yield();
  CHECK_EQ(scene.dispatcher->waiting(), 10);
  scene.runner.SetOpen(true);
  for (auto& thread : threads) thread.join();
  CHECK_EQ(answered.load(), 10);
  CHECK_EQ(refused.load(), 90);
}

void TestNoQueueAtAll() {
  DispatcherOptions options;
  options.queue_limit = 0;
  Scene scene(options);
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1})).ok());
  auto blocked = scene.Block();
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({2})).code == FailCode::kResourceExhausted);
  scene.runner.SetOpen(true);  // before the future waits for its thread
}

void TestDeadlineInTheQueue() {
  Scene scene;
  auto blocked = scene.Block();
  auto late = scene.Queue(1, Scene::NewCall(kStart + 10 * kMs));
  scene.clock.Advance(10 * kMs);
  const Failure failure = late.get();  // while the other one still runs
  CHECK(failure.code == FailCode::kDeadlineExceeded);
  CHECK(failure.stage == Stage::kQueue);
  CHECK_EQ(scene.dispatcher->waiting(), 0);
  scene.runner.SetOpen(true);
  CHECK(blocked.get().ok());
  CHECK(scene.runner.batches() == Batches({{0}}));  // it was never started
}

void TestDeadlineWhileRunning() {
  Scene scene;
  scene.runner.SetOpen(false);
  auto late = scene.Send(1, Scene::NewCall(kStart + 10 * kMs));
  scene.runner.WaitForRuns(1);
  scene.clock.Advance(10 * kMs);
  const Failure failure = late.get();
  CHECK(failure.code == FailCode::kDeadlineExceeded);
  CHECK(failure.stage == Stage::kRun);
  scene.runner.SetOpen(true);
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({2})).ok());
}

void TestTooLateAlready() {
  Scene scene;
  const Failure failure = scene.dispatcher->Run(Scene::NewCall(kStart), Scene::Pieces({1}));
  CHECK(failure.code == FailCode::kDeadlineExceeded);
  CHECK(scene.runner.batches().empty());
}

// Nobody waits for these: a timer gives them up.
void TestDeadlinesOfAsynchronousRequests() {
  Scene scene;
  auto blocked = scene.Block();
  std::promise<Failure> queued, running;
  const auto call = Scene::NewCall(kStart + 10 * kMs);
  scene.dispatcher->Submit(call, Scene::Pieces({1}), [&](const Failure& failure) { queued.set_value(failure); });
  scene.clock.Advance(10 * kMs);
  Failure failure = queued.get_future().get();
  CHECK(failure.code == FailCode::kDeadlineExceeded);
  CHECK(failure.stage == Stage::kQueue);
  scene.runner.SetOpen(true);
  CHECK(blocked.get().ok());
  scene.runner.SetOpen(false);
  const auto other = Scene::NewCall(kStart + 30 * kMs);
  scene.dispatcher->Submit(other, Scene::Pieces({2}), [&](const Failure& failed) { running.set_value(failed); });
  scene.runner.WaitForRuns(2);
  scene.clock.Advance(20 * kMs);
  failure = running.get_future().get();
  CHECK(failure.stage == Stage::kRun);
  scene.runner.SetOpen(true);
  std::promise<Failure> good;
  const auto last = Scene::NewCall(kStart + 1000 * kMs);
  scene.dispatcher->Submit(last, Scene::Pieces({3}), [&](const Failure& failed) { good.set_value(failed); });
  CHECK(good.get_future().get().ok());
}

void TestCancel() {
  Scene scene(Batching(10));
  auto blocked = scene.Block();
  const auto waiting = Scene::NewCall();
  auto first = scene.Queue(1, Scene::NewCall());
  auto cancelled = scene.Queue(2, waiting);
  auto third = scene.Queue(3, Scene::NewCall());
  waiting->Cancel();
  Failure failure = cancelled.get();
  CHECK(failure.code == FailCode::kCancelled);
  CHECK(failure.stage == Stage::kQueue);
  scene.runner.SetOpen(true);
  CHECK(first.get().ok());
  CHECK(third.get().ok());
  CHECK(scene.runner.batches() == Batches({{0}, {1, 3}}));

  const auto before = Scene::NewCall();
  before->Cancel();
  before->Cancel();
  CHECK(scene.dispatcher->Run(before, Scene::Pieces({4})).code == FailCode::kCancelled);
}

// Its batchmates get their answers.
void TestCancelOfOneThatRuns() {
  Scene scene(Batching(10));
  auto blocked = scene.Block();
  const auto call = Scene::NewCall();
  auto first = scene.Queue(1, Scene::NewCall());
  auto cancelled = scene.Queue(2, call);
  scene.runner.act = [&](int, const std::vector<Piece*>& pieces) {
    if (pieces.size() == 2) call->Cancel();
    return Runner::Outcome::kDone;
  };
  scene.runner.SetOpen(true);
  const Failure failure = cancelled.get();
  CHECK(failure.code == FailCode::kCancelled);
  CHECK(failure.stage == Stage::kRun);
  CHECK(first.get().ok());
}

void TestBatches() {
  Scene scene(Batching(4));
  auto blocked = scene.Block();
  std::vector<std::future<Failure>> sent;
  for (int i = 1; i <= 6; ++i) sent.push_back(scene.Queue(i, Scene::NewCall(), 1, i == 3 ? 0 : 1));
  scene.runner.SetOpen(true);
  for (auto& one : sent) CHECK(one.get().ok());
  CHECK(scene.runner.batches() == Batches({{0}, {1, 2, 4, 5}, {3}, {6}}));
}

// Two executors, one of them busy: a request waits for mates, and no longer than the delay.
void TestDelay() {
  Scene scene(Batching(10, 5 * kMs, 2));
  auto blocked = scene.Block();
  auto first = scene.Queue(1, Scene::NewCall());
  auto second = scene.Queue(2, Scene::NewCall());
  CHECK_EQ(scene.runner.batches().size(), size_t{1});
  scene.clock.Advance(5 * kMs);
  scene.runner.WaitForRuns(2);
  CHECK(scene.runner.batches() == Batches({{0}, {1, 2}}));
  scene.runner.SetOpen(true);
  CHECK(first.get().ok());
  CHECK(second.get().ok());
}

void TestBadMate() {
  Scene scene(Batching(10));
  auto blocked = scene.Block();
  std::vector<std::future<Failure>> sent;
  for (int i = 1; i <= 3; ++i) sent.push_back(scene.Queue(i, Scene::NewCall()));
  scene.runner.act = [](int, const std::vector<Piece*>& pieces) {
    if (pieces.size() > 1) return Runner::Outcome::kApart;
    if (static_cast<NumberPiece*>(pieces[0])->number == 2) {
      pieces[0]->failure = {FailCode::kInvalidArgument, Stage::kRun, "bad"};
    }
    return Runner::Outcome::kDone;
  };
  scene.runner.SetOpen(true);
  CHECK(sent[0].get().ok());
  CHECK(sent[1].get().code == FailCode::kInvalidArgument);
  CHECK(sent[2].get().ok());
  CHECK(scene.runner.batches() == Batches({{0}, {1, 2, 3}, {1}, {2}, {3}}));
  CHECK_EQ(scene.dispatcher->Counts()[0].failures, 0);
}

// It throws, answers with an error, and lives on; the other one gets the work while it looks broken.
void TestExecutorThatThrows() {
  DispatcherOptions options;
  options.executors = 2;
  Scene scene(options);
  std::atomic<bool> broken{true};
  scene.runner.act = [&](int executor, const std::vector<Piece*>&) -> Runner::Outcome {
    if (executor == 0 && broken) throw std::runtime_error("out of something");
    return Runner::Outcome::kDone;
  };
  const Failure failure = scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1}));
  CHECK(failure.code == FailCode::kInternal);
  CHECK(failure.message.find("out of something") != std::string::npos);
  for (int i = 0; i < 5; ++i) CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({2})).ok());
  CHECK(scene.runner.executors() == std::vector<int>({0, 1, 1, 1, 1, 1}));
  CHECK_EQ(scene.dispatcher->Counts()[0].failures, 1);
  broken = false;
  scene.clock.Advance(60'000 * kMs);
  scene.runner.SetOpen(false);
  auto first = scene.Send(3, Scene::NewCall());
  auto second = scene.Send(4, Scene::NewCall());
  scene.runner.WaitForRuns(8);
  scene.runner.SetOpen(true);
  CHECK(first.get().ok());
  CHECK(second.get().ok());
}

void TestRoundRobin() {
  DispatcherOptions options;
  options.executors = 3;
  options.policy.routing = Routing::kRoundRobin;
  Scene scene(options);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 25; ++k) CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({k})).ok());
    });
  }
  for (auto& thread : threads) thread.join();
  const std::vector<ExecutorCounts> counts = scene.dispatcher->Counts();
  CHECK_EQ(counts[0].runs, 34);
  CHECK_EQ(counts[1].runs, 33);
  CHECK_EQ(counts[2].runs, 33);
}

// A request in pieces is one request of the queue, and fails as one.
void TestPieces() {
  DispatcherOptions options;
  options.queue_limit = 1;
  Scene scene(options);
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1, 2, 3}, 1, 0)).ok());
  CHECK(scene.runner.batches() == Batches({{1}, {2}, {3}}));
  scene.runner.act = [](int, const std::vector<Piece*>& pieces) {
    if (static_cast<NumberPiece*>(pieces[0])->number == 4) {
      pieces[0]->failure = {FailCode::kInvalidArgument, Stage::kRun, "bad"};
    }
    return Runner::Outcome::kDone;
  };
  const Failure failure = scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({4, 5, 6}, 1, 0));
  CHECK(failure.code == FailCode::kInvalidArgument);
  CHECK_EQ(scene.dispatcher->waiting(), 0);
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({7})).ok());
}

void TestClose() {
  Scene scene;
  CHECK(scene.dispatcher->Enter());
  CHECK(!scene.dispatcher->Close(0));
  CHECK(!scene.dispatcher->Enter());
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1})).code == FailCode::kUnavailable);
  scene.dispatcher->Leave();
  CHECK(scene.dispatcher->Close(0));
}

void TestCloseWaitsForThoseInside() {
  Scene scene;
  CHECK(scene.dispatcher->Enter());
  auto blocked = scene.Block();
  auto closed = std::async(std::launch::async, [&] { return scene.dispatcher->Close(1000 * kMs); });
  while (!scene.dispatcher->closed()) std::this_thread::yield();
  scene.runner.SetOpen(true);
  CHECK(blocked.get().ok());
  scene.dispatcher->Leave();
  CHECK(closed.get());
}

void TestCloseGivesUpAfterItsTime() {
  Scene scene;
  CHECK(scene.dispatcher->Enter());
  auto blocked = scene.Block();
  auto waiting = scene.Queue(1, Scene::NewCall());
  auto closed = std::async(std::launch::async, [&] { return scene.dispatcher->Close(5 * kMs); });
  while (!scene.dispatcher->closed()) std::this_thread::yield();
  while (closed.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) scene.clock.Advance(5 * kMs);
  CHECK(!closed.get());
  CHECK(blocked.get().code == FailCode::kUnavailable);
  const Failure failure = waiting.get();
  CHECK(failure.code == FailCode::kUnavailable);
  CHECK(failure.stage == Stage::kQueue);
  scene.dispatcher->Leave();
}

void TestCpuThatIsNotThere() {
  TestRunner runner;
  FakeClock clock(kStart);
  DispatcherOptions options;
  options.cpu_sets = {{1023}};
  std::string error;
  CHECK(Dispatcher::Start(options, &runner, &clock, &error) == nullptr);
  CHECK(error.find("1023") != std::string::npos);
}

// Everything at once, for the sanitizers.
void TestStorm() {
  DispatcherOptions options = Batching(8, kMs, 3);
  options.queue_limit = 20;
  Scene scene(options);
  std::atomic<bool> over{false};
  std::thread time([&] {
    while (!over) {
      scene.clock.Advance(kMs);
      std::this_thread::yield();
    }
  });
  scene.runner.act = [](int, const std::vector<Piece*>& pieces) -> Runner::Outcome {
    for (Piece* piece : pieces) {
      if (static_cast<NumberPiece*>(piece)->number % 13 == 0) {
        if (pieces.size() > 1) return Runner::Outcome::kApart;
        throw std::runtime_error("13");
      }
    }
    return Runner::Outcome::kDone;
  };
  std::vector<std::thread> threads;
  std::atomic<int> done{0}, finished{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 150; ++i) {
        const auto call = Scene::NewCall(i % 3 == 0 ? scene.clock.Now() + (i % 40) * kMs : 0, i % 5);
        auto pieces =
            i % 7 == 0 ? Scene::Pieces({i, i + 1, i + 2}) : Scene::Pieces({i}, 1, static_cast<uint64_t>(t % 3));
        if (i % 4 == 0) {
          ++done;
          scene.dispatcher->Submit(call, std::move(pieces), [&](const Failure&) { ++finished; });
          if (i % 8 == 0) call->Cancel();
        } else {
          scene.dispatcher->Run(call, std::move(pieces));
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  while (finished.load() < done.load()) std::this_thread::yield();
  CHECK_EQ(scene.dispatcher->waiting(), 0);
  over = true;
  time.join();
  CHECK(scene.dispatcher->Close(0));
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestOneRequest();
  tfctr::TestFifoAndPriorities();
  tfctr::TestQueueLimitIsExact();
  tfctr::TestNoQueueAtAll();
  tfctr::TestDeadlineInTheQueue();
  tfctr::TestDeadlineWhileRunning();
  tfctr::TestTooLateAlready();
  tfctr::TestDeadlinesOfAsynchronousRequests();
  tfctr::TestCancel();
  tfctr::TestCancelOfOneThatRuns();
  tfctr::TestBatches();
  tfctr::TestDelay();
  tfctr::TestBadMate();
  tfctr::TestExecutorThatThrows();
  tfctr::TestRoundRobin();
  tfctr::TestPieces();
  tfctr::TestClose();
  tfctr::TestCloseWaitsForThoseInside();
  tfctr::TestCloseGivesUpAfterItsTime();
  tfctr::TestCpuThatIsNotThere();
  tfctr::TestStorm();
  return 0;
}
