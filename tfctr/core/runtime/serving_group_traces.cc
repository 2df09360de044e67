// Traced runs of a ServingGroup.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "tfctr/core/runtime/group_parts.h"
#include "tfctr/core/runtime/serving_group.h"

namespace tfctr {

namespace {

// Requests that wait for their form to be made are held in memory.
constexpr size_t kMostWanted = 8;

int64_t UnixNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void ServingGroup::StartTraces(int64_t every, int64_t room, bool replay) {
  const std::lock_guard<std::mutex> lock(preparing_);
  replay_ = replay;
  traces_.Start(every, room);
}

void ServingGroup::StopTraces() {
  traces_.Stop();  // what is being prepared stops after this executor
  const std::lock_guard<std::mutex> lock(preparing_);
  {
    const std::lock_guard<std::mutex> signatures_lock(mutex_);
    for (const auto& signature : signatures_) {
      for (size_t i = 0; i < models_.size(); ++i) signature->runner(static_cast<int>(i)).DropTraced();
    }
  }
  const std::lock_guard<std::mutex> wanted_lock(wanted_mutex_);
  wanted_.clear();
}

std::vector<std::string> ServingGroup::PrepareTraces() {
  const std::lock_guard<std::mutex> lock(preparing_);
  std::vector<Wanted> wanted;
  {
    const std::lock_guard<std::mutex> wanted_lock(wanted_mutex_);
    wanted.swap(wanted_);
  }
  std::vector<std::string> errors;
  for (const Wanted& one : wanted) {
    for (size_t i = 0; i < models_.size() && traces_.on(); ++i) {
      SignatureRunner& runner = one.signature->runner(static_cast<int>(i));
      if (runner.Traced(one.request) != nullptr) continue;
      const auto prepare = [&] { runner.PrepareTrace(one.request, replay_); };
      const auto work = [&] {
        // Where nobody else takes the requests, they wait for this.
        if (models_.size() > 1) {
          AtLowPriority(prepare);
        } else {
          prepare();
        }
      };
      if (!dispatcher_->Aside(static_cast<int>(i), work)) return errors;
      const std::shared_ptr<const TracedForm> form = runner.Traced(one.request);
      if (form != nullptr && !form->error.empty()) errors.push_back(one.signature->name() + ": " + form->error);
    }
  }
  return errors;
}

std::unique_ptr<RunTrace> ServingGroup::BeginTrace(const PackedRequest& request, const std::vector<Piece*>& pieces) {
  if (!traces_.Due(static_cast<int64_t>(pieces.size()))) return nullptr;
  const RequestPiece& first = AsRequest(pieces[0]);
  std::shared_ptr<const TracedForm> form = first.signature->runner(first.executor).Traced(request);
  if (form == nullptr) {
    traces_.Owe();
    const std::lock_guard<std::mutex> lock(wanted_mutex_);
    const bool known = std::any_of(wanted_.begin(), wanted_.end(), [&](const Wanted& one) {
      return one.signature == first.signature && one.request.split == request.split &&
             one.request.absent == request.absent;
    });
    if (!known && wanted_.size() < kMostWanted) wanted_.push_back({first.signature, request});
    return nullptr;
  }
  if (form->program == nullptr) {
    traces_.CountFailed();
    return nullptr;
  }
  if (!traces_.Reserve()) return nullptr;
  auto trace = std::make_unique<RunTrace>();
  trace->form = std::move(form);
  trace->signature = first.signature->name();
  trace->split = request.split;
  trace->executor = first.executor;
  trace->thread = static_cast<int64_t>(syscall(SYS_gettid));
  trace->start_ns = UnixNow();
  return trace;
}

void ServingGroup::EndTrace(std::unique_ptr<RunTrace> trace, const absl::Status& status,
                            const std::vector<Piece*>& pieces) {
  if (!status.ok()) return traces_.Fail();
  for (Piece* piece : pieces) {
    const RequestPiece& one = AsRequest(piece);
    const Call::Origin& origin = one.call->origin;
    trace->requests.push_back({origin.id, one.rows, origin.parse_ns, origin.pack_ns, one.picked_ns - one.submitted_ns});
    trace->rows += one.rows;
  }
  const RequestPiece& first = AsRequest(pieces[0]);
  trace->batch_ns = first.batched_ns - first.picked_ns;
  trace->run_ns = first.run_ns - first.batched_ns;
  trace->lookup_ns = first.lookup_ns;
  trace->dense_ns = first.dense_ns;
  traces_.Add(std::move(trace));
}

}  // namespace tfctr
