// The one place where requests meet executors: a bounded queue in front of N runner threads, one per executor.
//
// Who calls Run sleeps on a condition of its own call and returns at its deadline, also while its batch runs. One whose
// request is to run at once, alone, and has time for many such runs, runs it itself in the executor's place: two
// changes of threads less. No lock is held while something runs. What runs next is policy.h's to say.
//
// Thread-safety: all methods may be called from any thread.
#ifndef TFCTR_CORE_SERVING_DISPATCHER_H_
#define TFCTR_CORE_SERVING_DISPATCHER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tfctr/core/serving/call.h"
#include "tfctr/core/serving/clock.h"
#include "tfctr/core/serving/policy.h"

namespace tfctr {

// What executes pieces.
class Runner {
 public:
  enum class Outcome {
    kDone,   // every piece has its outputs or its failure
    kApart,  // together they failed over their data: run them one by one
  };
  virtual ~Runner() = default;
  // Runs these pieces, all of one lane, as one. What it throws fails each of them with kInternal.
  virtual Outcome Run(int executor, const std::vector<Piece*>& pieces) = 0;
};

struct DispatcherOptions {
  int executors = 1;
  int64_t queue_limit = 1000;  // requests that may wait; those that run do not count
  PolicyOptions policy;
  std::vector<std::vector<int>> cpu_sets;  // per executor the CPUs of its thread; empty: any
  int runner_nice = 0;
  // Callers may run what starts at once; never with cpu_sets or runner_nice, which are the runner threads'.
  bool caller_runs = true;
};

struct ExecutorCounts {
  int64_t runs = 0;
  int64_t requests = 0;  // pieces
  int64_t rows = 0;
  int64_t busy_ns = 0;
  int64_t failures = 0;  // requests that failed here, other than by their own data
  int64_t running = 0;   // pieces that run now
};

class Dispatcher : public std::enable_shared_from_this<Dispatcher> {
 public:
  // Starts the threads. `runner` and `clock` must outlive them (Close, then the destructor). On failure (CPUs that are
  // not there) returns nullptr and says why.
  static std::shared_ptr<Dispatcher> Start(const DispatcherOptions& options, Runner* runner, Clock* clock,
                                           std::string* error);
  // Ends the threads after what they run now.
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // A request comes in (true) and leaves; between the two, Close waits for it. False: closed.
  bool Enter();
  void Leave();

  // Runs the pieces of a claimed call and returns when all are done, or the first has failed, or the call was given up.
  Failure Run(const std::shared_ptr<Call>& call, std::vector<std::unique_ptr<Piece>> pieces);
  // The same without waiting: `on_finish` is called once, on a thread of the dispatcher, of who cancels, or at once.
  // It must not block.
  void Submit(const std::shared_ptr<Call>& call, std::vector<std::unique_ptr<Piece>> pieces,
              std::function<void(const Failure&)> on_finish);
  // Ends a call with this code (kCancelled, kDeadlineExceeded, kUnavailable) unless it has finished.
  void GiveUp(const std::shared_ptr<Call>& call, FailCode code);

  // No request enters from now on; waits until those inside have left, at most drain_ns (of the clock), then gives up
  // those that wait or run. Whether all had left in time.
  bool Close(int64_t drain_ns);
  bool closed() const { return closed_.load(); }

  // Ends the threads after what they run now; after Close.
  void Stop();

  // Does `work` on the calling thread while this executor runs nothing: once it is idle, and until `work` is done it is
  // given nothing. Requests go to the others; where there are none, they wait. False, and nothing was done, once Close
  // has given up. One at a time for each executor. What `work` throws is thrown on, when the executor is back.
  bool Aside(int executor, const std::function<void()>& work);

  std::vector<ExecutorCounts> Counts() const;
  int64_t waiting() const;  // requests in the queue
  Clock* clock() const { return clock_; }

 private:
  struct Entry {
    std::shared_ptr<Call> call;
    Piece* piece;
  };
  struct Slot {
    std::condition_variable wake;
    std::vector<Entry> assigned;  // until its thread takes them
    std::vector<std::shared_ptr<Call>> running;
    std::thread thread;
    ExecutorCounts counts;
    bool aside = false;
    int64_t longest_ns = 0;  // of recent runs
  };
  // What the caller of Run is to run itself.
  struct CallerRun {
    const Call* call = nullptr;  // that it may take
    size_t executor = 0;
    std::vector<Entry> entries;  // empty: nothing
  };

  Dispatcher(const DispatcherOptions& options, Runner* runner, Clock* clock);
  std::string StartThreads();
  void RunnerThread(size_t number);
  void TimerThread();
  std::string PrepareThread(size_t number) const;

  // Puts the call into the queue; what is to be told to it at once. caller: set where it is to run it itself; nullptr:
  // it can't.
  Failure Enqueue(const std::shared_ptr<Call>& call, std::vector<std::unique_ptr<Piece>> pieces, CallerRun* caller);
  // Whether the call's own thread may run it: runs are known to be short beside the time that it has.
  bool CallerMayRunLocked(const Slot& slot, const Call& call, int64_t now_ns) const;
  // Asks the policy and hands out work until there is none to hand out. Calls that have expired are added to `expired`,
  // to be finished without the lock.
  void DispatchLocked(int64_t now_ns, std::vector<std::shared_ptr<Call>>* expired);
  void AssignLocked(const Decision& decision, int64_t now_ns);
  void EraseLocked(const std::vector<size_t>& places);
  // Whose turn it is after this executor's: not that of one that is aside.
  size_t TurnAfterLocked(size_t number) const;
  // Takes what waits of a call out of the queue; whether anything of it runs.
  bool RemoveLocked(Call* call);
  void Execute(size_t number, std::vector<Entry> entries);
  void RunPieces(size_t number, const std::vector<Entry>& entries);
  // Frees the executor and hands out the next work; then tells the callers.
  void Complete(size_t number, const std::vector<Entry>& entries, int64_t start_ns);
  void WatchLocked(const std::shared_ptr<Call>& call);
  void UnwatchLocked(Call* call);

  const DispatcherOptions options_;
  Runner* const runner_;
  Clock* const clock_;

  mutable std::mutex mutex_;
  std::vector<Waiting> queue_;  // with entries_, place by place
  std::vector<Entry> entries_;
  std::vector<Load> loads_;
  std::vector<std::unique_ptr<Slot>> slots_;
  int64_t waiting_calls_ = 0;
  int64_t running_ = 0;
  size_t next_executor_ = 0;
  int64_t crowded_until_ns_ = 0;
  int64_t wake_at_ns_ = 0;
  CallerRun* caller_ = nullptr;  // of the call that is being put into the queue
  int64_t caller_runs_ = 0;      // that are under way
  std::condition_variable caller_done_;
  bool given_up_ = false;  // the time that Close gave is over
  bool stopping_ = false;
  size_t started_ = 0;
  std::string start_error_;
  std::condition_variable started_changed_;
  std::condition_variable aside_wait_;

  // Deadlines of calls that no thread waits for.
  std::multimap<int64_t, std::weak_ptr<Call>> watched_;
  std::condition_variable watched_changed_;
  std::thread timer_;  // started by the first of them

  std::atomic<bool> closed_{false};
  std::atomic<int64_t> inside_{0};
  std::condition_variable left_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_SERVING_DISPATCHER_H_
