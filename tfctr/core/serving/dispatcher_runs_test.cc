// What runs: batches, mates that fail, executors that throw, requests in pieces, the way down; and all of it at once.
#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tfctr/core/serving/dispatcher.h"
#include "tfctr/core/serving/dispatcher_testing.h"
#include "tfctr/core/test_check.h"

namespace tfctr {
namespace {

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

// What is done aside waits for the run before it; meanwhile requests go to the other executor, and after it back.
void TestAside(Routing routing) {
  DispatcherOptions options;
  options.executors = 2;
  options.policy.routing = routing;
  Scene scene(options);
  auto blocked = scene.Block();
  const int busy = scene.runner.executors()[0];
  std::atomic<bool> began{false};
  std::promise<void> end;
  auto aside = std::async(std::launch::async, [&] {
    return scene.dispatcher->Aside(busy, [&] {
      began = true;
      end.get_future().wait();
    });
  });
  CHECK(!began);
  scene.runner.SetOpen(true);
  CHECK(blocked.get().ok());
  while (!began) std::this_thread::yield();
  for (int i = 1; i <= 3; ++i) CHECK(scene.Send(i, Scene::NewCall()).get().ok());
  CHECK(scene.runner.executors() == std::vector<int>({busy, 1 - busy, 1 - busy, 1 - busy}));
  end.set_value();
  CHECK(aside.get());
  for (int i = 4; i <= 5; ++i) CHECK(scene.Send(i, Scene::NewCall()).get().ok());
  const std::vector<int> executors = scene.runner.executors();
  CHECK(executors[4] == busy || executors[5] == busy);
}

// The only executor: requests wait for what is done aside, and get their answer; nothing is done once all was given up.
// Work that fails costs no executor.
void TestAsideThatThrows() {
  Scene scene;
  bool thrown = false;
  try {
    scene.dispatcher->Aside(0, [] { throw std::runtime_error("broken"); });
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1})).ok());
}

void TestAsideAlone() {
  Scene scene;
  std::future<Failure> waiting;
  CHECK(scene.dispatcher->Aside(0, [&] { waiting = scene.Queue(1, Scene::NewCall()); }));
  CHECK(waiting.get().ok());
  auto blocked = scene.Block();
  auto aside = std::async(std::launch::async, [&] { return scene.dispatcher->Aside(0, [] { CHECK(false); }); });
  scene.dispatcher->Close(0);
  CHECK(!aside.get());
  CHECK(blocked.get().code == FailCode::kUnavailable);
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
  for (const tfctr::Routing routing : {tfctr::Routing::kLeastLoaded, tfctr::Routing::kRoundRobin})
    tfctr::TestAside(routing);
  tfctr::TestAsideAlone();
  tfctr::TestAsideThatThrows();
  tfctr::TestStorm();
  return 0;
}
