// Which requests run next, and on which executor: a pure function of what waits, what runs and what time it is. No
// clock, no lock, no thread; the dispatcher (dispatcher.h) asks it whenever one of the three changed.
//
// Rules: higher priority first, arrival order among equals. What has the same lane may share a run of up to
// max_batch_rows rows. A batch that is not full waits for mates only while other requests run or were there a moment
// ago (crowded_until_ns), at most max_delay_ns from the arrival of its first request, and never beyond half the time
// which a request of it has left. One that is alone on an idle server never waits.
//
// Cost: one pass over what waits.
#ifndef TFCTR_CORE_SERVING_POLICY_H_
#define TFCTR_CORE_SERVING_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfctr {

enum class Routing : uint8_t {
  kLeastLoaded,  // of the idle executors the one with the least work done lately
  kRoundRobin,   // strictly one after the other, also where the next one is busy and others are not
};

struct PolicyOptions {
  Routing routing = Routing::kLeastLoaded;
  int64_t max_batch_rows = 0;  // 0: every request runs alone
  int64_t max_delay_ns = 0;
};

// One request, or one piece of a large one, that waits.
struct Waiting {
  int64_t arrival_ns = 0;
  int64_t deadline_ns = 0;  // 0: none
  int64_t rows = 0;
  int64_t max_rows = 0;  // of a run that it shares, where its own limit is lower than max_batch_rows; 0: it is not
  uint64_t lane = 0;     // 0: runs alone
  int32_t priority = 0;
};

// What an executor has done lately: busy time that loses half of its weight every kHalfLifeNs.
struct Load {
  bool busy = false;
  double work_ns = 0;
  int64_t at_ns = 0;  // when work_ns was that much
};

inline constexpr int64_t kHalfLifeNs = 1'000'000'000;

// The weight that `load` has now.
double WorkAt(const Load& load, int64_t now_ns);

struct PolicyState {
  const PolicyOptions& options;
  const std::vector<Waiting>& queue;  // by priority (highest first), then arrival
  const std::vector<Load>& executors;
  int64_t running = 0;           // pieces that run now
  size_t next_executor = 0;      // of kRoundRobin
  int64_t crowded_until_ns = 0;  // until then mates may be on their way, whether anything runs or not
};

struct Decision {
  int executor = -1;            // -1: nothing starts now
  std::vector<size_t> take;     // places in the queue, ascending
  std::vector<size_t> expired;  // places whose deadline has passed, ascending; looked at up to the last one taken
  int64_t wake_at_ns = 0;       // when to ask again, if nothing else happens before; 0: no need
};

Decision Decide(const PolicyState& state, int64_t now_ns);

}  // namespace tfctr

#endif  // TFCTR_CORE_SERVING_POLICY_H_
