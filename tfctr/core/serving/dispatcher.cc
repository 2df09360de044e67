#include "tfctr/core/serving/dispatcher.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>

namespace tfctr {

namespace {

// An executor that fails is done sooner than one that works: without this, the least loaded one would be the broken
// one.
constexpr double kFailurePenaltyNs = 100e6;

// How long requests that overlap make others wait for mates: some delays, so that one pause in the traffic does not end
// it; but not longer than anybody would call a moment.
constexpr int64_t kCrowdedDelays = 4;
constexpr int64_t kMostCrowdedNs = 20'000'000;

std::string ClosedMessage() { return "the model is closed, or about to be unloaded"; }

Failure GivenUp(FailCode code, Stage stage) {
  if (code == FailCode::kCancelled) return CancelledFailure(stage);
  if (code == FailCode::kDeadlineExceeded) return DeadlineFailure(stage);
  return {code, stage, ClosedMessage()};
}

bool Overdue(const Call& call, int64_t now_ns) { return call.deadline_ns() != 0 && now_ns >= call.deadline_ns(); }

}  // namespace

std::shared_ptr<Dispatcher> Dispatcher::Start(const DispatcherOptions& options, Runner* runner, Clock* clock,
                                              std::string* error) {
  std::shared_ptr<Dispatcher> dispatcher(new Dispatcher(options, runner, clock));
  *error = dispatcher->StartThreads();
  if (!error->empty()) dispatcher.reset();
  return dispatcher;
}

Dispatcher::Dispatcher(const DispatcherOptions& options, Runner* runner, Clock* clock)
    : options_(options), runner_(runner), clock_(clock), loads_(static_cast<size_t>(options.executors)) {
  for (int i = 0; i < options.executors; ++i) slots_.push_back(std::make_unique<Slot>());
}

Dispatcher::~Dispatcher() {
  Close(0);
  Stop();
}

void Dispatcher::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    for (auto& slot : slots_) slot->wake.notify_all();
    watched_changed_.notify_all();
  }
  for (auto& slot : slots_) {
    if (slot->thread.joinable()) slot->thread.join();
  }
  if (timer_.joinable()) timer_.join();
  std::unique_lock<std::mutex> lock(mutex_);
  caller_done_.wait(lock, [this] { return caller_runs_ == 0; });
}

std::string Dispatcher::StartThreads() {
  try {
    for (size_t i = 0; i < slots_.size(); ++i) slots_[i]->thread = std::thread([this, i] { RunnerThread(i); });
  } catch (const std::system_error& error) {
    return std::string("no thread for an executor: ") + error.what();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  started_changed_.wait(lock, [this] { return started_ == slots_.size(); });
  return start_error_;
}

std::string Dispatcher::PrepareThread(size_t number) const {
  pthread_setname_np(pthread_self(), ("tfctr_run_" + std::to_string(number)).c_str());
  if (number < options_.cpu_sets.size() && !options_.cpu_sets[number].empty()) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    std::string text;
    for (const int cpu : options_.cpu_sets[number]) {
      text += (text.empty() ? "" : ", ") + std::to_string(cpu);
      if (cpu < 0 || cpu >= CPU_SETSIZE) return "executor " + std::to_string(number) + ": there is no CPU " + text;
      CPU_SET(cpu, &cpus);
    }
    if (sched_setaffinity(0, sizeof(cpus), &cpus) != 0) {
      return "executor " + std::to_string(number) + " can't run on CPUs [" + text + "]: " + std::strerror(errno);
    }
  }
  if (options_.runner_nice != 0) {
    const id_t thread = static_cast<id_t>(syscall(SYS_gettid));
    if (setpriority(PRIO_PROCESS, thread, options_.runner_nice) != 0) {
      return "no nice value " + std::to_string(options_.runner_nice) + " for executor " + std::to_string(number) +
             ": " + std::strerror(errno);
    }
  }
  return "";
}

bool Dispatcher::Enter() {
  inside_.fetch_add(1);
  if (!closed_.load()) return true;
  Leave();
  return false;
}

void Dispatcher::Leave() {
  if (inside_.fetch_sub(1) == 1 && closed_.load()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    left_.notify_all();
  }
}

Failure Dispatcher::Run(const std::shared_ptr<Call>& call, std::vector<std::unique_ptr<Piece>> pieces) {
  const bool may_run = options_.caller_runs && options_.cpu_sets.empty() && options_.runner_nice == 0;
  CallerRun own;
  own.call = call.get();
  Failure failure = Enqueue(call, std::move(pieces), may_run ? &own : nullptr);
  if (!failure.ok()) {
    call->Finish(failure);
    return failure;
  }
  if (!own.entries.empty()) {
    Execute(own.executor, std::move(own.entries));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--caller_runs_ == 0 && stopping_) caller_done_.notify_all();
  }
  std::unique_lock<std::mutex> lock(call->mutex_);
  while (!call->finished_) {
    if (Overdue(*call, clock_->Now())) {
      lock.unlock();
      GiveUp(call, FailCode::kDeadlineExceeded);
      lock.lock();
      continue;
    }
    clock_->Wait(call->changed_, lock, call->deadline_ns());
  }
  return call->failure_;
}

void Dispatcher::Submit(const std::shared_ptr<Call>& call, std::vector<std::unique_ptr<Piece>> pieces,
                        std::function<void(const Failure&)> on_finish) {
  call->on_finish_ = std::move(on_finish);  // nobody else knows of the call's end before it is in the queue
  Failure failure = Enqueue(call, std::move(pieces), nullptr);
  if (!failure.ok()) call->Finish(std::move(failure));
}

bool Dispatcher::CallerMayRunLocked(const Slot& slot, const Call& call, int64_t now_ns) const {
  // It can't leave a run at its deadline: it must have time for so many of the longest of late, and this much at least.
  constexpr int64_t kRuns = 16, kLeastNs = 200'000'000;
  if (slot.counts.runs < kRuns) return false;
  return call.deadline_ns() == 0 || call.deadline_ns() - now_ns > std::max(kLeastNs, kRuns * slot.longest_ns);
}

Failure Dispatcher::Enqueue(const std::shared_ptr<Call>& call, std::vector<std::unique_ptr<Piece>> pieces,
                            CallerRun* caller) {
  const int64_t now = clock_->Now();
  if (Failure failure = call->Check(now, Stage::kQueue); !failure.ok()) return failure;
  call->pieces_ = std::move(pieces);
  std::vector<std::shared_ptr<Call>> expired;
  Failure failure;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Not closed_: Close waits for those that were inside, and they may get here only now.
    if (given_up_) return {FailCode::kUnavailable, Stage::kQueue, ClosedMessage()};
    {
      const std::lock_guard<std::mutex> call_lock(call->mutex_);
      if (call->cancelled_) return CancelledFailure(Stage::kQueue);
      call->dispatcher_ = weak_from_this();
    }
    // Somebody else is between parsing and reply. With one executor nothing runs whenever it is free to take work: that
    // alone does not make a request lonely.
    if (inside_.load() > 1)
      crowded_until_ns_ = now + std::min(kCrowdedDelays * options_.policy.max_delay_ns, kMostCrowdedNs);
    const size_t count = call->pieces_.size();
    size_t place = queue_.size();  // behind those of the same priority
    while (place > 0 && queue_[place - 1].priority < call->priority()) --place;
    for (size_t i = 0; i < count; ++i) {
      Piece* piece = call->pieces_[i].get();
      const auto at = static_cast<std::ptrdiff_t>(place + i);
      queue_.insert(queue_.begin() + at,
                    {now, call->deadline_ns(), piece->rows, piece->max_rows, piece->lane, call->priority()});
      entries_.insert(entries_.begin() + at, {call, piece});
    }
    call->waiting_ = call->left_ = count;
    ++waiting_calls_;
    caller_ = count == 1 ? caller : nullptr;
    DispatchLocked(now, &expired);
    caller_ = nullptr;
    if (call->waiting_ == count && waiting_calls_ > options_.queue_limit) {
      RemoveLocked(call.get());
      failure = {FailCode::kResourceExhausted, Stage::kQueue,
                 std::to_string(waiting_calls_) + " requests wait, which is the limit"};
    } else if (call->on_finish_) {
      WatchLocked(call);
    }
  }
  for (const auto& late : expired) late->Finish(DeadlineFailure(Stage::kQueue));
  return failure;
}

void Dispatcher::EraseLocked(const std::vector<size_t>& places) {
  if (places.empty()) return;
  size_t to = places.front(), next = 0;
  for (size_t from = to; from < queue_.size(); ++from) {
    if (next < places.size() && places[next] == from) {
      ++next;
      continue;
    }
    queue_[to] = queue_[from];
    entries_[to] = std::move(entries_[from]);
    ++to;
  }
  queue_.resize(to);
  entries_.resize(to);
}

bool Dispatcher::RemoveLocked(Call* call) {
  const bool runs = call->left_ > call->waiting_;
  if (call->waiting_ == 0) return runs;
  std::vector<size_t> places;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].call.get() == call) places.push_back(i);
  }
  EraseLocked(places);
  call->waiting_ = 0;
  --waiting_calls_;
  return runs;
}

void Dispatcher::AssignLocked(const Decision& decision, int64_t now_ns) {
  const size_t number = static_cast<size_t>(decision.executor);
  Slot& slot = *slots_[number];
  const Call& first = *entries_[decision.take[0]].call;
  const bool by_caller = caller_ != nullptr && decision.take.size() == 1 && caller_->call == &first &&
                         CallerMayRunLocked(slot, first, now_ns);
  std::vector<Entry>& to = by_caller ? caller_->entries : slot.assigned;
  for (const size_t place : decision.take) {
    Entry& entry = entries_[place];
    if (--entry.call->waiting_ == 0) --waiting_calls_;
    entry.piece->executor = decision.executor;
    entry.piece->picked_ns = now_ns;
    slot.running.push_back(entry.call);
    to.push_back(std::move(entry));
  }
  EraseLocked(decision.take);
  const int64_t count = static_cast<int64_t>(decision.take.size());
  running_ += count;
  slot.counts.running = count;
  loads_[number].busy = true;
  if (options_.policy.routing == Routing::kRoundRobin) next_executor_ = TurnAfterLocked(number);
  if (by_caller) {
    caller_->executor = number;
    ++caller_runs_;
  } else {
    slot.wake.notify_one();
  }
}

void Dispatcher::DispatchLocked(int64_t now_ns, std::vector<std::shared_ptr<Call>>* expired) {
  wake_at_ns_ = 0;
  while (!queue_.empty()) {
    Decision decision = Decide({options_.policy, queue_, loads_, running_, next_executor_, crowded_until_ns_}, now_ns);
    for (const size_t place : decision.expired) expired->push_back(entries_[place].call);
    if (decision.executor >= 0) {
      AssignLocked(decision, now_ns);
    } else {
      wake_at_ns_ = decision.wake_at_ns;
    }
    for (const auto& call : *expired) RemoveLocked(call.get());
    if (decision.executor < 0) break;
  }
  if (wake_at_ns_ == 0) return;
  for (size_t i = 0; i < slots_.size(); ++i) {  // one that is idle keeps the time
    if (!loads_[i].busy) return slots_[i]->wake.notify_one();
  }
}

void Dispatcher::RunnerThread(size_t number) {
  const std::string error = PrepareThread(number);
  Slot& slot = *slots_[number];
  std::unique_lock<std::mutex> lock(mutex_);
  ++started_;
  if (!error.empty()) start_error_ = error;
  started_changed_.notify_all();
  for (;;) {
    if (!slot.assigned.empty()) {
      std::vector<Entry> entries;
      entries.swap(slot.assigned);
      lock.unlock();
      Execute(number, std::move(entries));
      lock.lock();
      continue;
    }
    if (stopping_) return;
    const int64_t now = wake_at_ns_ == 0 ? 0 : clock_->Now();
    if (wake_at_ns_ == 0 || now < wake_at_ns_) {
      clock_->Wait(slot.wake, lock, wake_at_ns_);
      continue;
    }
    std::vector<std::shared_ptr<Call>> expired;
    DispatchLocked(now, &expired);
    if (expired.empty()) continue;
    lock.unlock();
    for (const auto& call : expired) call->Finish(DeadlineFailure(Stage::kQueue));
    expired.clear();
    lock.lock();
  }
}

void Dispatcher::Execute(size_t number, std::vector<Entry> entries) {
  const int64_t start = clock_->Now();
  std::vector<Entry> live;
  for (const Entry& entry : entries) {
    entry.piece->picked_ns = start;
    if (entry.call->finished()) continue;
    if (Overdue(*entry.call, start)) {
      entry.piece->failure = DeadlineFailure(Stage::kQueue);
    } else {
      live.push_back(entry);
    }
  }
  if (!live.empty()) RunPieces(number, live);
  Complete(number, entries, start);
}

void Dispatcher::RunPieces(size_t number, const std::vector<Entry>& entries) {
  std::vector<Piece*> pieces;
  int64_t rows = 0;
  for (const Entry& entry : entries) {
    pieces.push_back(entry.piece);
    rows += entry.piece->rows;
  }
  for (Piece* piece : pieces) {
    piece->batch_rows = rows;
    piece->batch_requests = static_cast<int64_t>(pieces.size());
  }
  Runner::Outcome outcome = Runner::Outcome::kDone;
  std::string thrown;
  try {
    outcome = runner_->Run(static_cast<int>(number), pieces);
  } catch (const std::exception& error) {
    thrown = std::string("executor ") + std::to_string(number) + " failed: " + error.what();
  } catch (...) {
    thrown = "executor " + std::to_string(number) + " failed with something that is no std::exception";
  }
  if (!thrown.empty()) {
    for (Piece* piece : pieces) piece->failure = {FailCode::kInternal, Stage::kRun, thrown};
    return;
  }
  if (outcome == Runner::Outcome::kDone) return;
  if (entries.size() == 1) {
    pieces[0]->failure = {FailCode::kInternal, Stage::kRun, "a request that ran alone was sent back to run alone"};
    return;
  }
  for (const Entry& entry : entries) {
    if (entry.call->finished()) continue;
    if (Overdue(*entry.call, clock_->Now())) {
      entry.piece->failure = DeadlineFailure(Stage::kRun);
    } else {
      RunPieces(number, {entry});
    }
  }
}

void Dispatcher::Complete(size_t number, const std::vector<Entry>& entries, int64_t start_ns) {
  std::vector<std::shared_ptr<Call>> expired;
  std::vector<char> last(entries.size());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t now = clock_->Now();
    Slot& slot = *slots_[number];
    int64_t broken = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      const Entry& entry = entries[i];
      last[i] = --entry.call->left_ == 0;
      slot.counts.rows += entry.piece->rows;
      if (entry.piece->failure.code == FailCode::kInternal) ++broken;
      if (!entry.piece->failure.ok()) {
        RemoveLocked(entry.call.get());
        entry.call->broken_ = true;
        last[i] = true;
      } else if (entry.call->broken_) {
        last[i] = false;  // whoever runs the piece that failed tells, maybe later than this
      }
      if (last[i] != 0) UnwatchLocked(entry.call.get());
    }
    ++slot.counts.runs;
    slot.counts.requests += static_cast<int64_t>(entries.size());
    slot.counts.busy_ns += now - start_ns;
    slot.counts.failures += broken;
    slot.longest_ns = std::max(now - start_ns, slot.longest_ns - slot.longest_ns / 64);  // older ones count less
    slot.counts.running = 0;
    slot.running.clear();
    Load& load = loads_[number];
    load.work_ns = WorkAt(load, now) + static_cast<double>(now - start_ns) + (broken > 0 ? kFailurePenaltyNs : 0);
    load.at_ns = now;
    load.busy = slot.aside;
    running_ -= static_cast<int64_t>(entries.size());
    DispatchLocked(now, &expired);
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (last[i] != 0) entries[i].call->Finish(entries[i].piece->failure);
  }
  for (const auto& call : expired) call->Finish(DeadlineFailure(Stage::kQueue));
}

void Dispatcher::GiveUp(const std::shared_ptr<Call>& call, FailCode code) {
  bool runs = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    runs = RemoveLocked(call.get());
    UnwatchLocked(call.get());
  }
  call->Finish(GivenUp(code, runs ? Stage::kRun : Stage::kQueue));
}

bool Dispatcher::Close(int64_t drain_ns) {
  closed_.store(true);
  // Without time to wait this touches no clock: the last reference may be one that outlived it.
  int64_t until = 0;
  if (drain_ns > 0 && __builtin_add_overflow(clock_->Now(), drain_ns, &until)) until = INT64_MAX;
  std::vector<std::shared_ptr<Call>> rest;
  bool drained = true;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (inside_.load() > 0 && drain_ns > 0 && clock_->Now() < until) clock_->Wait(left_, lock, until);
    drained = inside_.load() == 0;
    given_up_ = true;
    for (const Entry& entry : entries_) rest.push_back(entry.call);
    for (const auto& slot : slots_) rest.insert(rest.end(), slot->running.begin(), slot->running.end());
  }
  for (const auto& call : rest) GiveUp(call, FailCode::kUnavailable);
  return drained;
}

void Dispatcher::WatchLocked(const std::shared_ptr<Call>& call) {
  if (call->deadline_ns() == 0) return;
  const bool first = watched_.empty() || call->deadline_ns() < watched_.begin()->first;
  watched_.emplace(call->deadline_ns(), call);
  call->watched_ = true;
  if (!timer_.joinable()) timer_ = std::thread([this] { TimerThread(); });
  if (first) watched_changed_.notify_one();
}

void Dispatcher::UnwatchLocked(Call* call) {
  if (!call->watched_) return;
  call->watched_ = false;
  const auto [first, end] = watched_.equal_range(call->deadline_ns());
  for (auto one = first; one != end; ++one) {
    if (one->second.lock().get() != call) continue;
    watched_.erase(one);
    return;
  }
}

void Dispatcher::TimerThread() {
  pthread_setname_np(pthread_self(), "tfctr_timer");
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    if (watched_.empty() || clock_->Now() < watched_.begin()->first) {
      clock_->Wait(watched_changed_, lock, watched_.empty() ? 0 : watched_.begin()->first);
      continue;
    }
    const std::shared_ptr<Call> call = watched_.begin()->second.lock();
    if (call == nullptr) {
      watched_.erase(watched_.begin());
      continue;
    }
    lock.unlock();
    GiveUp(call, FailCode::kDeadlineExceeded);
    lock.lock();
  }
}

std::vector<ExecutorCounts> Dispatcher::Counts() const {
  std::vector<ExecutorCounts> counts;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& slot : slots_) counts.push_back(slot->counts);
  return counts;
}

int64_t Dispatcher::waiting() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return waiting_calls_;
}

}  // namespace tfctr
