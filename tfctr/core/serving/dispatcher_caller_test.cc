// Requests that their callers run themselves: which ones, and that everything else holds for them too.
#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tfctr/core/serving/dispatcher.h"
#include "tfctr/core/serving/dispatcher_testing.h"
#include "tfctr/core/test_check.h"

namespace tfctr {
namespace {

constexpr int kKnown = 16;  // runs after which callers run

// Runs that take `run_ms` of the fake clock; says on which thread.
struct CallerScene : Scene {
  explicit CallerScene(DispatcherOptions options = {}, int64_t run_ms = 1) : Scene(options) {
    runner.act = [this, run_ms](int, const std::vector<Piece*>&) {
      thread = std::this_thread::get_id();
      clock.Advance(run_ms * kMs);
      return Runner::Outcome::kDone;
    };
    for (int i = 0; i < kKnown; ++i) CHECK(!Mine(0));
  }
  // Whether a request with this much time is run by its caller.
  bool Mine(int64_t left_ns, int count = 1) {
    const int64_t deadline = left_ns == 0 ? 0 : clock.Now() + left_ns;
    CHECK(dispatcher->Run(NewCall(deadline), Pieces(std::vector<int>(static_cast<size_t>(count), 7))).ok());
    return thread.load() == std::this_thread::get_id();
  }
  std::atomic<std::thread::id> thread;
};

void TestWhoRuns() {
  CallerScene scene;
  CHECK(scene.Mine(0));
  CHECK(scene.Mine(1000 * kMs));
  CHECK(!scene.Mine(200 * kMs));  // a run that takes longer than any before could be late
  CHECK(!scene.Mine(0, 2));       // of several pieces
  CHECK(scene.Mine(0));
  CHECK_EQ(scene.dispatcher->Counts()[0].runs, kKnown + 6);
}

void TestLongRunsAreRemembered() {
  CallerScene scene;
  CHECK(scene.Mine(500 * kMs));
  scene.runner.act = [&](int, const std::vector<Piece*>&) {
    scene.clock.Advance(100 * kMs);
    return Runner::Outcome::kDone;
  };
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1})).ok());
  scene.runner.act = [&](int, const std::vector<Piece*>&) {
    scene.thread = std::this_thread::get_id();
    return Runner::Outcome::kDone;
  };
  CHECK(!scene.Mine(500 * kMs));
  for (int i = 0; i < 1000; ++i) scene.Mine(0);
  CHECK(scene.Mine(500 * kMs));
}

void TestNeverBesideSettingsOfThreads() {
  for (const int which : {0, 1, 2}) {
    DispatcherOptions options;
    if (which == 0) options.cpu_sets = {{0}};
    if (which == 1) options.runner_nice = 1;
    if (which == 2) options.caller_runs = false;
    CallerScene scene(options);
    CHECK(!scene.Mine(0));
  }
}

// While a caller runs, others wait, are batched and are run by the executor's thread.
void TestOthersWait() {
  CallerScene scene(Batching(10));
  const size_t before = scene.runner.batches().size();
  scene.runner.SetOpen(false);
  auto first = scene.Send(1, Scene::NewCall());
  scene.runner.WaitForRuns(before + 1);
  CHECK_EQ(scene.dispatcher->Counts()[0].running, 1);
  auto second = scene.Queue(2, Scene::NewCall());
  auto third = scene.Queue(3, Scene::NewCall());
  scene.runner.SetOpen(true);
  CHECK(first.get().ok());
  CHECK(second.get().ok());
  CHECK(third.get().ok());
  CHECK(scene.runner.batches().back() == std::vector<int>({2, 3}));
}

void TestCancelledAndLate() {
  CallerScene scene;
  const size_t before = scene.runner.batches().size();
  scene.runner.SetOpen(false);
  const auto call = Scene::NewCall();
  auto sent = scene.Send(1, call);
  scene.runner.WaitForRuns(before + 1);
  call->Cancel();
  CHECK(call->finished());
  scene.runner.SetOpen(true);
  const Failure failure = sent.get();
  CHECK(failure.code == FailCode::kCancelled);
  CHECK(failure.stage == Stage::kRun);
  CHECK(scene.Mine(0));
}

void TestCallerThatThrows() {
  CallerScene scene;
  scene.runner.act = [](int, const std::vector<Piece*>&) -> Runner::Outcome { throw std::runtime_error("broken"); };
  const Failure failure = scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1}));
  CHECK(failure.code == FailCode::kInternal);
  CHECK_EQ(scene.dispatcher->Counts()[0].failures, 1);
}

// The end waits for callers too.
void TestStop() {
  CallerScene scene;
  const size_t before = scene.runner.batches().size();
  scene.runner.SetOpen(false);
  auto sent = scene.Send(1, Scene::NewCall());
  scene.runner.WaitForRuns(before + 1);
  auto stopped = std::async(std::launch::async, [&] {
    const bool drained = scene.dispatcher->Close(0);
    scene.dispatcher->Stop();
    return drained;
  });
  CHECK(sent.valid());
  scene.runner.SetOpen(true);
  stopped.get();
  const Failure failure = sent.get();
  CHECK(failure.ok() || failure.code == FailCode::kUnavailable);
  CHECK_EQ(scene.dispatcher->Counts()[0].running, 0);
}

void TestManyCallers() {
  DispatcherOptions options = Batching(4, 0, 2);
  Scene scene(options);
  std::atomic<int> inside{0}, most{0};
  scene.runner.act = [&](int, const std::vector<Piece*>&) {
    const int now = ++inside;
    for (int seen = most.load(); now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    --inside;
    return Runner::Outcome::kDone;
  };
  std::vector<std::thread> threads;
  std::atomic<int> answered{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) answered += scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({i})).ok();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(answered.load(), 3000);
  CHECK(most.load() <= 2);  // never more runs than executors
  CHECK_EQ(scene.dispatcher->waiting(), 0);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestWhoRuns();
  tfctr::TestLongRunsAreRemembered();
  tfctr::TestNeverBesideSettingsOfThreads();
  tfctr::TestOthersWait();
  tfctr::TestCancelledAndLate();
  tfctr::TestCallerThatThrows();
  tfctr::TestStop();
  tfctr::TestManyCallers();
  return 0;
}
