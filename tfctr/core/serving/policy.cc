#include "tfctr/core/serving/policy.h"

#include <algorithm>
#include <cmath>

namespace tfctr {

namespace {

// The executor that the next run goes to; -1: none is free to take it.
int Choose(const PolicyState& state, int64_t now_ns) {
  const size_t count = state.executors.size();
  if (count == 0) return -1;
  if (state.options.routing == Routing::kRoundRobin) {
    const size_t next = state.next_executor % count;
    return state.executors[next].busy ? -1 : static_cast<int>(next);
  }
  int best = -1;
  double least = 0;
  for (size_t i = 0; i < count; ++i) {
    if (state.executors[i].busy) continue;
    const double work = WorkAt(state.executors[i], now_ns);
    if (best < 0 || work < least) {
      best = static_cast<int>(i);
      least = work;
    }
  }
  return best;
}

// Until when a request may wait for mates.
int64_t PatienceOf(const Waiting& request, int64_t max_delay_ns) {
  const int64_t delay = request.arrival_ns + max_delay_ns;
  if (request.deadline_ns == 0) return delay;
  return std::min(delay, request.arrival_ns + (request.deadline_ns - request.arrival_ns) / 2);
}

struct Batch {
  std::vector<size_t> take;
  int64_t rows = 0;
  int64_t patience_ns = 0;
  bool full = false;
};

// The batch that starts with the request at `first`: those of its lane in their order, up to the first that would be
// too many rows.
Batch BatchFrom(const PolicyState& state, size_t first, int64_t now_ns) {
  const Waiting& head = state.queue[first];
  Batch batch;
  batch.take.push_back(first);
  batch.rows = head.rows;
  batch.patience_ns = PatienceOf(head, state.options.max_delay_ns);
  int64_t limit = state.options.max_batch_rows;
  if (head.max_rows > 0) limit = std::min(limit, head.max_rows);
  if (head.lane == 0 || limit <= 0) {
    batch.full = true;
    return batch;
  }
  batch.full = batch.rows >= limit;
  for (size_t i = first + 1; i < state.queue.size() && !batch.full; ++i) {
    const Waiting& other = state.queue[i];
    if (other.lane != head.lane || (other.deadline_ns != 0 && other.deadline_ns <= now_ns)) continue;
    if (batch.rows + other.rows > limit) {
      batch.full = true;
      break;
    }
    batch.take.push_back(i);
    batch.rows += other.rows;
    batch.patience_ns = std::min(batch.patience_ns, PatienceOf(other, state.options.max_delay_ns));
    batch.full = batch.rows >= limit;
  }
  return batch;
}

}  // namespace

double WorkAt(const Load& load, int64_t now_ns) {
  if (load.work_ns <= 0 || now_ns <= load.at_ns) return load.work_ns;
  return load.work_ns * std::exp2(-static_cast<double>(now_ns - load.at_ns) / static_cast<double>(kHalfLifeNs));
}

Decision Decide(const PolicyState& state, int64_t now_ns) {
  Decision decision;
  const int executor = Choose(state, now_ns);
  std::vector<uint64_t> delayed;  // lanes whose batch waits for mates
  for (size_t i = 0; i < state.queue.size(); ++i) {
    const Waiting& head = state.queue[i];
    if (head.deadline_ns != 0 && head.deadline_ns <= now_ns) {
      decision.expired.push_back(i);
      continue;
    }
    if (executor < 0) break;
    if (head.lane != 0 && std::find(delayed.begin(), delayed.end(), head.lane) != delayed.end()) continue;
    Batch batch = BatchFrom(state, i, now_ns);
    const int64_t until = state.running > 0 ? batch.patience_ns : std::min(batch.patience_ns, state.crowded_until_ns);
    if (!batch.full && now_ns < until) {
      delayed.push_back(head.lane);
      if (decision.wake_at_ns == 0 || until < decision.wake_at_ns) decision.wake_at_ns = until;
      continue;
    }
    decision.executor = executor;
    decision.take = std::move(batch.take);
    decision.wake_at_ns = 0;
    break;
  }
  return decision;
}

}  // namespace tfctr
