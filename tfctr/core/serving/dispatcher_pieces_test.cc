// Requests of several pieces, of which one fails; requests that are inside when Close comes.
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tfctr/core/serving/dispatcher_testing.h"

namespace tfctr {
namespace {

// The failure of a piece is told by the runner thread that had it, which may be kept up between the run and the
// telling; the last good piece, done meanwhile on another executor, must not end the request well.
void TestGoodPieceDoesNotOvertakeTheFailure() {
  constexpr int kMate = 1, kBad = 2, kGood = 3;
  DispatcherOptions options;
  options.executors = 2;
  options.policy.max_batch_rows = 2;
  Scene scene(options);
  std::promise<void> good_runs, told, go_on;
  std::future<void> good_is_running = good_runs.get_future();
  std::shared_future<void> mate_told = told.get_future().share();
  std::future<void> goes_on = go_on.get_future();
  scene.runner.act = [&](int, const std::vector<Piece*>& pieces) {
    for (Piece* piece : pieces) {
      const int number = static_cast<NumberPiece*>(piece)->number;
      if (number == kBad) {
        good_is_running.wait();
        piece->failure = {FailCode::kInvalidArgument, Stage::kRun, "bad"};
      } else if (number == kGood) {
        good_runs.set_value();
        mate_told.wait();
      }
    }
    return Runner::Outcome::kDone;
  };
  auto first = scene.Block();
  auto second = scene.Send(0, Scene::NewCall(), 1, /*lane=*/9);
  scene.runner.WaitForRuns(2);
  const auto call = Scene::NewCall();
  // The mate is told first, and keeps the thread up that has the failure of the other one to tell.
  scene.dispatcher->Submit(Scene::NewCall(), Scene::Pieces({kMate}), [&](const Failure&) {
    told.set_value();
    goes_on.wait();
  });
  auto pieces =
      std::async(std::launch::async, [&] { return scene.dispatcher->Run(call, Scene::Pieces({kBad, kGood})); });
  while (scene.dispatcher->waiting() < 2) std::this_thread::yield();
  scene.runner.SetOpen(true);
  CHECK(first.get().ok());
  CHECK(second.get().ok());
  mate_told.wait();
  for (int64_t runs = 0; runs < 4;) {  // until the good piece is done as well
    runs = 0;
    for (const ExecutorCounts& counts : scene.dispatcher->Counts()) runs += counts.runs;
    std::this_thread::yield();
  }
  go_on.set_value();
  const Failure failure = pieces.get();
  CHECK(failure.code == FailCode::kInvalidArgument);
}

// It has entered and is still being packed.
void TestCloseServesThoseInside() {
  Scene scene;
  CHECK(scene.dispatcher->Enter());
  auto closed = std::async(std::launch::async, [&] { return scene.dispatcher->Close(1000 * kMs); });
  while (!scene.dispatcher->closed()) std::this_thread::yield();
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1})).ok());
  scene.dispatcher->Leave();
  CHECK(closed.get());
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({2})).code == FailCode::kUnavailable);
}

void TestCloseWithAllTheTimeThereIs() {
  Scene scene;
  CHECK(scene.dispatcher->Enter());
  auto closed = std::async(std::launch::async, [&] { return scene.dispatcher->Close(INT64_MAX); });
  while (!scene.dispatcher->closed()) std::this_thread::yield();
  CHECK(scene.dispatcher->Run(Scene::NewCall(), Scene::Pieces({1})).ok());
  scene.dispatcher->Leave();
  CHECK(closed.get());
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestGoodPieceDoesNotOvertakeTheFailure();
  tfctr::TestCloseServesThoseInside();
  tfctr::TestCloseWithAllTheTimeThereIs();
  return 0;
}
