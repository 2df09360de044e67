// Calls share contexts while more are made beside them: no OpenVINO needed.
#include "tfctr/core/openvino/context_pool.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

struct Thing {
  std::atomic<int> users{0};
};
using Pool = ContextPool<Thing>;

// Calls on `threads` threads until `until` says so; each has its context alone.
template <typename Until>
void RunUntil(Pool* pool, int threads, const Until& until) {
  std::atomic<bool> alone{true};
  std::vector<std::thread> all;
  for (int k = 0; k < threads; ++k) {
    all.emplace_back([&] {
      for (int turn = 0; turn < 50 || !until(); ++turn) {
        std::unique_ptr<Thing> thing = pool->Acquire();
        if (++thing->users != 1) alone = false;
        std::this_thread::yield();
        --thing->users;
        pool->Release(std::move(thing));
      }
    });
  }
  for (std::thread& one : all) one.join();
  CHECK(alone);
}

void MoreAreMadeWhileCallsWait() {
  std::atomic<int> making{0};
  std::atomic<bool> one_at_a_time{true};
  Pool pool(3, [&]() -> Result<std::unique_ptr<Thing>> {
    if (++making != 1) one_at_a_time = false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --making;
    return std::make_unique<Thing>();
  });
  CHECK(pool.Make().ok());
  RunUntil(&pool, 1, [] { return true; });
  CHECK_EQ(pool.made(), 1);  // nobody waited
  RunUntil(&pool, 8, [&] { return pool.made() == 3; });
  CHECK_EQ(pool.made(), 3);
  CHECK_EQ(pool.failed(), "");
  CHECK(one_at_a_time);
}

// The one that waits gets what is given back, though nothing can be made.
void CallsShareWhatThereIs() {
  for (const bool throws : {false, true}) {
    std::atomic<int> asked{0};
    Pool pool(3, [&]() -> Result<std::unique_ptr<Thing>> {
      if (++asked == 1) return std::make_unique<Thing>();
      if (throws) throw std::runtime_error("no memory");
      return Status::Invalid("no memory");
    });
    CHECK(pool.Make().ok());
    RunUntil(&pool, 4, [&] { return asked.load() > 1 && !pool.failed().empty(); });
    CHECK_EQ(pool.failed(), "no memory");
    CHECK_EQ(pool.made(), 1);
    RunUntil(&pool, 4, [] { return true; });
    CHECK_EQ(asked.load(), 2);  // it is not tried with every call
  }
}

void TheFirstMustSucceed() {
  Pool pool(3, []() -> Result<std::unique_ptr<Thing>> { return Status::Invalid("refused"); });
  CHECK_EQ(pool.Make().message, "refused");
  CHECK_EQ(pool.made(), 0);
}

// While one is being made.
void Ends() {
  for (int turn = 0; turn < 20; ++turn) {
    Pool pool(4, []() -> Result<std::unique_ptr<Thing>> {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return std::make_unique<Thing>();
    });
    CHECK(pool.Make().ok());
    RunUntil(&pool, 4, [] { return true; });
  }
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::MoreAreMadeWhileCallsWait();
  tfctr::CallsShareWhatThereIs();
  tfctr::TheFirstMustSucceed();
  tfctr::Ends();
  return 0;
}
