// Requests, executors and a clock that the test sets: order, limits, deadlines, cancellation.
#include "tfctr/core/serving/dispatcher.h"

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "tfctr/core/serving/dispatcher_testing.h"
#include "tfctr/core/test_check.h"

namespace tfctr {
namespace {

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

// Triton #5783, #6796: a burst of 100 beside one that runs, with room for 10.
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

// Triton #7512: the one behind does not wait for the run before it to end.
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
  return 0;
}
