// One request on its way through a server: its deadline, its priority, whether it was given up, and the pieces of it
// that run (one, or several of a request with more rows than a run may have).
//
// Thread-safety: Call may be used from any number of threads; a Piece belongs to whoever runs it, and after the call
// has finished well to whoever called. Lock order: dispatcher before call.
#ifndef TFCTR_CORE_SERVING_CALL_H_
#define TFCTR_CORE_SERVING_CALL_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tfctr {

enum class Stage : uint8_t { kNone, kParse, kPack, kQueue, kBatch, kRun, kReply };
const char* StageName(Stage stage);

enum class FailCode : uint8_t {
  kOk,
  kInvalidArgument,
  kDeadlineExceeded,
  kResourceExhausted,
  kUnavailable,
  kCancelled,
  kInternal,
  kNotFound,
  kUnimplemented,
};
inline constexpr int kFailCodes = 9;
// Name of the gRPC status.
const char* FailCodeName(FailCode code);

struct Failure {
  FailCode code = FailCode::kOk;
  Stage stage = Stage::kNone;
  std::string message;

  bool ok() const { return code == FailCode::kOk; }
};

// What was given up because its time was over, during `stage`.
Failure DeadlineFailure(Stage stage);
Failure CancelledFailure(Stage stage);

// What one run takes of a call; the runner's own class adds what goes in and what comes out.
class Piece {
 public:
  virtual ~Piece() = default;

  int64_t rows = 0;
  int64_t max_rows = 0;  // of a run that it shares
  uint64_t lane = 0;     // pieces of the same lane may share a run; 0: alone
  // Set by the run.
  Failure failure;
  int executor = -1;
  int64_t batch_rows = 0;
  int64_t batch_requests = 0;
  int64_t picked_ns = 0;   // left the queue
  int64_t batched_ns = 0;  // put together with its mates
  int64_t run_ns = 0;      // end of the run
  int64_t split_ns = 0;    // its own outputs are there
};

class Dispatcher;

class Call : public std::enable_shared_from_this<Call> {
 public:
  // What traces say of it beside what its pieces know. Set before it is submitted, not changed after.
  struct Origin {
    std::string id;  // of the request, as its client knows it
    int64_t parse_ns = 0;
    int64_t pack_ns = 0;
  };

  // deadline_ns: of the dispatcher's clock; 0: none. Higher priorities run first.
  Call(int64_t deadline_ns, int32_t priority) : deadline_ns_(deadline_ns), priority_(priority) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  int64_t deadline_ns() const { return deadline_ns_; }
  int32_t priority() const { return priority_; }
  Origin origin;

  // Gives the call up: what waits leaves the queue, what runs is dropped when it is done, and who waits for it gets
  // kCancelled at once. Nothing happens when it has finished already.
  void Cancel();
  bool cancelled() const;
  bool finished() const;
  // Whether it is time to give up before `stage`: cancelled, or too late.
  Failure Check(int64_t now_ns, Stage stage) const;

  // False when the call was used before: each is for one request.
  bool Claim();

  // Those that it was submitted with, once it has finished well.
  const std::vector<std::unique_ptr<Piece>>& pieces() const { return pieces_; }
  // Memory of a call that has finished and whose results were taken.
  void DropPieces() { pieces_.clear(); }

 private:
  friend class Dispatcher;

  // False when it had finished before.
  bool Finish(Failure failure);

  const int64_t deadline_ns_;
  const int32_t priority_;
  std::vector<std::unique_ptr<Piece>> pieces_;     // not changed between submission and the end
  std::function<void(const Failure&)> on_finish_;  // instead of a thread that waits

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool claimed_ = false;
  bool cancelled_ = false;
  bool finished_ = false;
  Failure failure_;
  std::weak_ptr<Dispatcher> dispatcher_;

  // Guarded by the dispatcher's lock.
  size_t waiting_ = 0;   // pieces in the queue
  size_t left_ = 0;      // pieces that are not done
  bool broken_ = false;  // a piece of it failed
  bool watched_ = false;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_SERVING_CALL_H_
