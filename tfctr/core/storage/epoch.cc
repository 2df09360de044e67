#include "tfctr/core/storage/epoch.h"

#include <algorithm>
#include <thread>

namespace tfctr {
namespace {

// Threads start at different places, so that they seldom meet.
size_t FirstPlace() {
  static std::atomic<size_t> threads{0};
  static thread_local const size_t mine = threads.fetch_add(1, std::memory_order_relaxed);
  return mine % Epochs::kReaders;
}

}  // namespace

size_t Epochs::Enter() {
  const size_t first = FirstPlace();
  for (size_t tried = 0;; ++tried) {
    const size_t at = (first + tried) % kReaders;
    uint64_t nobody = 0;
    // What happened before Tag() gave a smaller number is visible from here on, by now_'s acquire; what happened before
    // an Oldest() that missed us is, by the exchange on the place, which Oldest() has written too.
    const uint64_t now = now_.load(std::memory_order_acquire);
    if (places_[at].since.compare_exchange_strong(nobody, now, std::memory_order_acq_rel, std::memory_order_relaxed)) {
      return at;
    }
    if (tried % kReaders == kReaders - 1) std::this_thread::yield();
  }
}

uint64_t Epochs::Oldest() {
  uint64_t oldest = now_.load(std::memory_order_acquire);
  for (Place& place : places_) {
    const uint64_t since = place.since.fetch_add(0, std::memory_order_acq_rel);
    if (since != 0) oldest = std::min(oldest, since);
  }
  return oldest;
}

}  // namespace tfctr
