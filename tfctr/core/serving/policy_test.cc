// What runs next, as a function of what waits and what time it is.
#include "tfctr/core/serving/policy.h"

#include <cmath>
#include <vector>

#include "tfctr/core/test_check.h"

namespace tfctr {
namespace {

using Places = std::vector<size_t>;

// A queue and executors to ask about.
struct Scene {
  PolicyOptions options;
  std::vector<Waiting> queue;
  std::vector<Load> executors = std::vector<Load>(1);
  int64_t running = 0;
  int64_t crowded_until = 0;
  size_t next = 0;

  Decision At(int64_t now) const { return Decide({options, queue, executors, running, next, crowded_until}, now); }
};

Waiting Request(int64_t arrival, int64_t rows = 1, uint64_t lane = 7, int64_t deadline = 0) {
  Waiting waiting;
  waiting.arrival_ns = arrival;
  waiting.rows = rows;
  waiting.lane = lane;
  waiting.deadline_ns = deadline;
  return waiting;
}

void TestNothingToDo() {
  Scene scene;
  CHECK_EQ(scene.At(0).executor, -1);
  scene.queue = {Request(0)};
  scene.executors[0].busy = true;
  CHECK_EQ(scene.At(0).executor, -1);
  CHECK_EQ(scene.At(0).wake_at_ns, 0);  // whoever gets done asks again
}

void TestAloneRunsAtOnce() {
  Scene scene;
  scene.options.max_batch_rows = 100;
  scene.options.max_delay_ns = 1'000'000;
  scene.queue = {Request(50)};
  CHECK_EQ(scene.At(50).executor, 0);
  CHECK(scene.At(50).take == Places({0}));
}

void TestWaitsForMatesOnlyWhileOthersRun() {
  Scene scene;
  scene.options.max_batch_rows = 100;
  scene.options.max_delay_ns = 1000;
  scene.executors.resize(2);
  scene.executors[0].busy = true;
  scene.running = 1;
  scene.queue = {Request(50), Request(60)};
  CHECK_EQ(scene.At(60).executor, -1);
  CHECK_EQ(scene.At(60).wake_at_ns, 1050);
  CHECK_EQ(scene.At(1050).executor, 1);
  CHECK(scene.At(1050).take == Places({0, 1}));
  scene.queue.push_back(Request(70, 98));
  CHECK(scene.At(70).take == Places({0, 1, 2}));  // full
  scene.queue[2].rows = 99;
  CHECK(scene.At(70).take == Places({0, 1}));  // as full as it gets
}

void TestWaitsForMatesWhereOthersWereThereAMomentAgo() {
  Scene scene;
  scene.options.max_batch_rows = 100;
  scene.options.max_delay_ns = 1000;
  scene.queue = {Request(50)};
  CHECK_EQ(scene.At(50).executor, 0);  // alone: never delayed
  scene.crowded_until = 500;
  CHECK_EQ(scene.At(50).executor, -1);
  CHECK_EQ(scene.At(50).wake_at_ns, 500);
  CHECK_EQ(scene.At(500).executor, 0);
  scene.crowded_until = 5000;
  CHECK_EQ(scene.At(60).wake_at_ns, 1050);
  scene.queue.push_back(Request(70, 99));
  CHECK(scene.At(70).take == Places({0, 1}));  // full
}

void TestDelayLeavesHalfOfTheDeadline() {
  Scene scene;
  scene.options.max_batch_rows = 100;
  scene.options.max_delay_ns = 1000;
  scene.running = 1;
  scene.queue = {Request(0), Request(100, 1, 7, 500)};
  CHECK_EQ(scene.At(100).wake_at_ns, 300);
  CHECK_EQ(scene.At(300).executor, 0);
}

void TestDelayedLaneLetsOthersPass() {
  Scene scene;
  scene.options.max_batch_rows = 10;
  scene.options.max_delay_ns = 1000;
  scene.running = 1;
  scene.queue = {Request(0, 1, 7), Request(1, 1, 7), Request(2, 1, 0), Request(3, 1, 7)};
  const Decision decision = scene.At(5);
  CHECK_EQ(decision.executor, 0);
  CHECK(decision.take == Places({2}));  // runs alone, so it has nothing to wait for
}

void TestLanes() {
  Scene scene;
  scene.options.max_batch_rows = 10;
  scene.queue = {Request(0, 4, 7), Request(1, 4, 8), Request(2, 4, 7), Request(3, 4, 7), Request(4, 2, 7)};
  CHECK(scene.At(5).take == Places({0, 2}));  // the fourth is too many, and nobody overtakes it
  scene.queue[0].lane = 0;
  CHECK(scene.At(5).take == Places({0}));
  scene.options.max_batch_rows = 0;
  scene.queue[0].lane = 7;
  CHECK(scene.At(5).take == Places({0}));
  scene.options.max_batch_rows = 10;
  scene.queue[0].max_rows = 4;
  CHECK(scene.At(5).take == Places({0}));
  scene.queue[0].rows = 1000;  // more than the limit runs too
  CHECK(scene.At(5).take == Places({0}));
}

void TestExpired() {
  Scene scene;
  scene.options.max_batch_rows = 10;
  scene.queue = {Request(0, 1, 7, 10), Request(1, 1, 7, 20), Request(2, 1, 7, 10), Request(3)};
  const Decision decision = scene.At(10);
  CHECK(decision.expired == Places({0}));
  CHECK(decision.take == Places({1, 3}));
  scene.executors[0].busy = true;
  CHECK_EQ(scene.At(10).executor, -1);
}

void TestLeastLoaded() {
  Scene scene;
  scene.executors = std::vector<Load>(3);
  scene.executors[0].work_ns = 100;
  scene.executors[1].work_ns = 50;
  scene.executors[2].busy = true;
  scene.queue = {Request(0)};
  CHECK_EQ(scene.At(0).executor, 1);
  scene.executors[0].at_ns = -2 * kHalfLifeNs;  // long ago
  CHECK(std::fabs(WorkAt(scene.executors[0], 0) - 25) < 1e-9);
  CHECK_EQ(scene.At(0).executor, 0);
}

void TestRoundRobin() {
  Scene scene;
  scene.options.routing = Routing::kRoundRobin;
  scene.executors = std::vector<Load>(3);
  scene.queue = {Request(0)};
  scene.next = 2;
  CHECK_EQ(scene.At(0).executor, 2);
  scene.executors[2].busy = true;
  CHECK_EQ(scene.At(0).executor, -1);  // strictly
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestNothingToDo();
  tfctr::TestAloneRunsAtOnce();
  tfctr::TestWaitsForMatesOnlyWhileOthersRun();
  tfctr::TestWaitsForMatesWhereOthersWereThereAMomentAgo();
  tfctr::TestDelayLeavesHalfOfTheDeadline();
  tfctr::TestDelayedLaneLetsOthersPass();
  tfctr::TestLanes();
  tfctr::TestExpired();
  tfctr::TestLeastLoaded();
  tfctr::TestRoundRobin();
  return 0;
}
