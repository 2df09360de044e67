// Work that is done while an executor is left out.
#include <exception>

#include "tfctr/core/serving/dispatcher.h"

namespace tfctr {

namespace {

// How often it is looked whether the executor is idle by now.
constexpr int64_t kLookNs = 1'000'000;

}  // namespace

size_t Dispatcher::TurnAfterLocked(size_t number) const {
  size_t next = number;
  for (size_t i = 0; i < slots_.size(); ++i) {
    next = (next + 1) % slots_.size();
    if (!slots_[next]->aside) break;
  }
  return next;
}

bool Dispatcher::Aside(int executor, const std::function<void()>& work) {
  const size_t number = static_cast<size_t>(executor);
  Slot& slot = *slots_[number];
  std::vector<std::shared_ptr<Call>> expired;
  bool done = false;
  std::exception_ptr thrown;  // the executor goes on all the same
  {
    std::unique_lock<std::mutex> lock(mutex_);
    slot.aside = true;
    if (next_executor_ == number) next_executor_ = TurnAfterLocked(number);
    while (slot.counts.running > 0 && !given_up_) clock_->Wait(aside_wait_, lock, clock_->Now() + kLookNs);
    if (!given_up_) {
      loads_[number].busy = true;
      lock.unlock();
      try {
        work();
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      done = true;
    }
    slot.aside = false;
    loads_[number].busy = slot.counts.running > 0;
    DispatchLocked(clock_->Now(), &expired);
  }
  for (const auto& call : expired) call->Finish(DeadlineFailure(Stage::kQueue));
  if (thrown != nullptr) std::rethrow_exception(thrown);
  return done;
}

}  // namespace tfctr
