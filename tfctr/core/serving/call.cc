#include "tfctr/core/serving/call.h"

#include <utility>

#include "tfctr/core/serving/dispatcher.h"

namespace tfctr {

const char* StageName(Stage stage) {
  switch (stage) {
    case Stage::kParse:
      return "parse";
    case Stage::kPack:
      return "pack";
    case Stage::kQueue:
      return "queue";
    case Stage::kBatch:
      return "batch";
    case Stage::kRun:
      return "run";
    case Stage::kReply:
      return "reply";
    case Stage::kNone:
      break;
  }
  return "";
}

const char* FailCodeName(FailCode code) {
  switch (code) {
    case FailCode::kOk:
      return "OK";
    case FailCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case FailCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case FailCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case FailCode::kUnavailable:
      return "UNAVAILABLE";
    case FailCode::kCancelled:
      return "CANCELLED";
    case FailCode::kNotFound:
      return "NOT_FOUND";
    case FailCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case FailCode::kInternal:
      break;
  }
  return "INTERNAL";
}

Failure DeadlineFailure(Stage stage) {
  return {FailCode::kDeadlineExceeded, stage, std::string("the deadline passed in stage ") + StageName(stage)};
}

Failure CancelledFailure(Stage stage) {
  return {FailCode::kCancelled, stage, std::string("the request was cancelled in stage ") + StageName(stage)};
}

bool Call::Claim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !std::exchange(claimed_, true);
}

void Call::Cancel() {
  std::shared_ptr<Dispatcher> dispatcher;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (finished_ || cancelled_) return;
    cancelled_ = true;
    dispatcher = dispatcher_.lock();
  }
  if (dispatcher != nullptr) dispatcher->GiveUp(shared_from_this(), FailCode::kCancelled);
}

bool Call::cancelled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return cancelled_;
}

bool Call::finished() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return finished_;
}

Failure Call::Check(int64_t now_ns, Stage stage) const {
  if (cancelled()) return CancelledFailure(stage);
  if (deadline_ns_ != 0 && now_ns >= deadline_ns_) return DeadlineFailure(stage);
  return {};
}

bool Call::Finish(Failure failure) {
  std::function<void(const Failure&)> on_finish;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return false;
    finished_ = true;
    failure_ = std::move(failure);
    on_finish.swap(on_finish_);
  }
  changed_.notify_all();  // whoever finishes a call holds it
  if (on_finish) on_finish(failure_);
  return true;
}

}  // namespace tfctr
