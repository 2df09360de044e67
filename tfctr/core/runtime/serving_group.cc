#include "tfctr/core/runtime/serving_group.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "tfctr/core/runtime/group_parts.h"

namespace tfctr {

namespace {

// Beyond this a request is a mistake, and its pieces would fill the queue.
constexpr int64_t kMaxPieces = 4096;

Failure RunFailure(const SignatureRunner& runner, const absl::Status& status, const PackedRequest& request) {
  const FailCode code = IsAboutInput(status)                ? FailCode::kInvalidArgument
                        : absl::IsResourceExhausted(status) ? FailCode::kResourceExhausted
                                                            : FailCode::kInternal;
  return {code, Stage::kRun, runner.FailureText(status, request)};
}

Answer CutFailed(const absl::Status& status) {
  const FailCode code = absl::IsInvalidArgument(status)     ? FailCode::kInvalidArgument
                        : absl::IsResourceExhausted(status) ? FailCode::kResourceExhausted
                                                            : FailCode::kInternal;
  return {{code, Stage::kPack, std::string(status.message())}, {}, {}};
}

void FailAll(const std::vector<Piece*>& pieces, FailCode code, Stage stage, const std::string& message) {
  for (Piece* piece : pieces) piece->failure = {code, stage, message};
}

}  // namespace

absl::StatusOr<std::unique_ptr<GroupSignature>> GroupSignature::Make(
    const std::vector<std::shared_ptr<const Model>>& models, std::shared_ptr<const SignaturePlan> plan,
    std::string name, uint64_t number, bool batchable, int64_t max_rows) {
  std::unique_ptr<GroupSignature> signature(new GroupSignature());
  signature->name_ = std::move(name);
  signature->number_ = number;
  signature->max_rows_ = max_rows;
  signature->plan_ = std::move(plan);
  signature->batchable_ = batchable;
  absl::StatusOr<BatchPlan> batch = BatchPlan::Make(*signature->plan_);
  if (batchable && !batch.ok()) return batch.status();
  if (batch.ok()) signature->batch_ = *std::move(batch);
  for (const auto& model : models) {
    absl::StatusOr<std::unique_ptr<SignatureRunner>> runner = SignatureRunner::Make(model, *signature->plan_);
    if (!runner.ok()) return runner.status();
    signature->runners_.push_back(*std::move(runner));
  }
  return signature;
}

Failure GroupSignature::CheckOutputs(const std::vector<std::string>& names) const {
  const std::vector<Output>& outputs = plan_->plain.outputs;
  for (const std::string& name : names) {
    const bool known = std::any_of(outputs.begin(), outputs.end(), [&](const Output& one) { return one.name == name; });
    if (known) continue;
    std::string there;
    for (const Output& one : outputs) there += (there.empty() ? "'" : ", '") + one.name + "'";
    return {FailCode::kInvalidArgument, Stage::kParse,
            plan_->context + ": there is no output '" + name + "'; there is: " + there};
  }
  return {};
}

uint64_t GroupSignature::Lane(const std::string& key) const {
  // Two keys of one lane would fail in Concat and run apart.
  const uint64_t lane = std::hash<std::string>()(key) * 0x9E3779B97F4A7C15u + number_ + 1;
  return lane == 0 ? 1 : lane;
}

std::unique_ptr<ServingGroup> ServingGroup::Make(std::vector<std::shared_ptr<const Model>> models,
                                                 const GroupOptions& options, std::string* error) {
  std::unique_ptr<ServingGroup> group(new ServingGroup());
  group->metrics_.set_enabled(options.metrics);
  group->models_ = std::move(models);
  DispatcherOptions dispatch = options.dispatch;
  dispatch.executors = static_cast<int>(group->models_.size());
  if (!options.batching) dispatch.policy.max_batch_rows = 0;
  group->max_batch_rows_ = dispatch.policy.max_batch_rows;
  group->max_request_rows_ = options.max_request_rows;
  for (size_t i = 0; i < dispatch.cpu_sets.size() && i < group->models_.size(); ++i) {
    const absl::Status pinned = group->models_[i]->Pin(dispatch.cpu_sets[i]);
    if (pinned.ok()) continue;
    *error = "executor " + std::to_string(i) + ": " + std::string(pinned.message());
    return nullptr;
  }
  group->dispatcher_ = Dispatcher::Start(dispatch, group.get(), &group->clock_, error);
  if (group->dispatcher_ == nullptr) group.reset();
  return group;
}

ServingGroup::~ServingGroup() { dispatcher_.reset(); }

absl::StatusOr<const GroupSignature*> ServingGroup::AddSignature(std::shared_ptr<const SignaturePlan> plan,
                                                                 const std::string& name, bool batchable,
                                                                 int64_t max_rows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t limit = max_batch_rows_;
  if (limit > 0 && max_rows > 0) limit = std::min(limit, max_rows);
  absl::StatusOr<std::unique_ptr<GroupSignature>> made;
  AtLowPriority([&] {
    made = GroupSignature::Make(models_, std::move(plan), name, signatures_.size(), batchable && limit > 0, limit);
  });
  if (!made.ok()) return made.status();
  signatures_.push_back(*std::move(made));
  return signatures_.back().get();
}

absl::StatusOr<std::vector<std::unique_ptr<Piece>>> ServingGroup::Cut(const GroupSignature& signature,
                                                                      PackedRequest request, const Call* call,
                                                                      int64_t submitted_ns) const {
  std::vector<std::unique_ptr<Piece>> pieces;
  const auto add = [&](PackedRequest part) -> RequestPiece* {
    auto piece = std::make_unique<RequestPiece>();
    piece->signature = &signature;
    piece->request = std::move(part);
    piece->call = call;
    piece->submitted_ns = submitted_ns;
    pieces.push_back(std::move(piece));
    return &AsRequest(pieces.back().get());
  };
  if (max_request_rows_ > 0) {
    const auto [rows, name] = MostRows(signature.plan(), request);
    if (rows > max_request_rows_) {
      return absl::InvalidArgumentError(signature.plan().context + ": input '" + name + "' has " +
                                        std::to_string(rows) + " rows, the limit is " +
                                        std::to_string(max_request_rows_) + " (max_rows)");
    }
  }
  RequestInfo info;
  if (signature.batch().has_value()) info = signature.batch()->Inspect(request);
  if (!signature.batchable() || info.rows < 0) {
    RequestPiece* piece = add(std::move(request));
    piece->rows = std::max<int64_t>(0, info.rows);
    return pieces;
  }
  const int64_t limit = signature.max_rows();
  const uint64_t lane = signature.Lane(info.key);
  if (info.rows <= limit) {
    RequestPiece* piece = add(std::move(request));
    piece->rows = info.rows;
    piece->max_rows = limit;
    piece->lane = lane;
    return pieces;
  }
  if (info.rows > limit * kMaxPieces) {
    return absl::InvalidArgumentError(signature.plan().context + ": a request of " + std::to_string(info.rows) +
                                      " rows; at most " + std::to_string(limit * kMaxPieces) +
                                      " are served, in runs of " + std::to_string(limit));
  }
  absl::StatusOr<std::vector<PackedRequest>> parts = signature.batch()->Cut(request, limit);
  if (!parts.ok()) return parts.status();
  for (PackedRequest& part : *parts) {
    RequestPiece* piece = add(std::move(part));
    const RequestInfo cut = signature.batch()->Inspect(piece->request);
    piece->rows = std::max<int64_t>(0, cut.rows);
    piece->max_rows = limit;
    piece->lane = cut.rows < 0 ? 0 : signature.Lane(cut.key);
  }
  return pieces;
}

Answer ServingGroup::Collect(const GroupSignature& signature, Call* call, int64_t submitted_ns, Failure failure) {
  Answer answer;
  answer.failure = std::move(failure);
  if (!answer.failure.ok()) return answer;
  const std::vector<std::unique_ptr<Piece>>& pieces = call->pieces();
  const Piece* last = pieces[0].get();  // the others ran beside it, or before
  for (const auto& piece : pieces) {
    answer.timing.rows += piece->rows;
    if (piece->split_ns > last->split_ns) last = piece.get();
  }
  Timing& timing = answer.timing;
  timing.queue = last->picked_ns - submitted_ns;
  timing.batch = last->batched_ns - last->picked_ns;
  timing.run = last->run_ns - last->batched_ns;
  timing.split = last->split_ns - last->run_ns;
  timing.batch_rows = last->batch_rows;
  timing.batch_requests = last->batch_requests;
  timing.executor = last->executor;
  timing.lookup = static_cast<const RequestPiece*>(last)->lookup_ns;
  timing.dense = static_cast<const RequestPiece*>(last)->dense_ns;
  if (pieces.size() == 1) {
    answer.outputs = std::move(AsRequest(pieces[0].get()).outputs);
  } else {
    std::vector<std::vector<tensorflow::Tensor>> parts;
    for (const auto& piece : pieces) parts.push_back(std::move(AsRequest(piece.get()).outputs));
    absl::StatusOr<std::vector<tensorflow::Tensor>> joined = signature.batch()->JoinOutputs(parts);
    if (joined.ok()) {
      answer.outputs = *std::move(joined);
    } else {
      answer.failure = {FailCode::kInternal, Stage::kReply,
                        signature.plan().context + ": " + std::string(joined.status().message())};
    }
  }
  call->DropPieces();
  return answer;
}

Answer ServingGroup::Run(const GroupSignature& signature, PackedRequest request, const std::shared_ptr<Call>& call) {
  const int64_t submitted = clock_.Now();
  absl::StatusOr<std::vector<std::unique_ptr<Piece>>> pieces =
      Cut(signature, std::move(request), call.get(), submitted);
  if (!pieces.ok()) return CutFailed(pieces.status());
  Failure failure = dispatcher_->Run(call, *std::move(pieces));
  return Collect(signature, call.get(), submitted, std::move(failure));
}

void ServingGroup::Submit(const GroupSignature& signature, PackedRequest request, const std::shared_ptr<Call>& call,
                          std::function<void(Answer)> done) {
  const int64_t submitted = clock_.Now();
  absl::StatusOr<std::vector<std::unique_ptr<Piece>>> pieces =
      Cut(signature, std::move(request), call.get(), submitted);
  if (!pieces.ok()) return done(CutFailed(pieces.status()));
  // The call is held by who finishes it for as long as this runs.
  dispatcher_->Submit(call, *std::move(pieces),
                      [&signature, submitted, raw = call.get(), done = std::move(done)](const Failure& failure) {
                        done(Collect(signature, raw, submitted, failure));
                      });
}

Answer ServingGroup::RunOn(int executor, const GroupSignature& signature, const PackedRequest& request) {
  Answer answer;
  AtLowPriority([&] {
    SignatureRunner& runner = signature.runner(executor);
    try {
      const int64_t start = clock_.Now();
      const absl::Status status = runner.Run(request, &answer.outputs);
      answer.timing.run = clock_.Now() - start;
      if (!status.ok()) answer.failure = RunFailure(runner, status, request);
    } catch (const std::exception& error) {
      answer.failure = {FailCode::kInternal, Stage::kRun, std::string("executor failed: ") + error.what()};
    }
  });
  answer.timing.executor = executor;
  return answer;
}

Failure ServingGroup::RunTogether(int executor, const GroupSignature& signature,
                                  const std::vector<PackedRequest>& requests,
                                  std::vector<std::vector<tensorflow::Tensor>>* outputs) {
  const auto refused = [&](std::string_view why) -> Failure {
    return {FailCode::kInvalidArgument, Stage::kBatch, signature.plan().context + ": " + std::string(why)};
  };
  if (!signature.batch().has_value() || requests.empty()) return refused("requests can't be put together");
  const BatchPlan& plan = *signature.batch();
  std::vector<RequestInfo> infos;
  std::vector<const PackedRequest*> pointers;
  std::vector<int64_t> rows;
  for (const PackedRequest& request : requests) {
    infos.push_back(plan.Inspect(request));
    if (!infos.back().why.empty()) return refused(infos.back().why);
    if (!BatchPlan::Fits(infos[0], infos.back())) return refused("the requests do not go together");
    pointers.push_back(&request);
    rows.push_back(infos.back().rows);
  }
  const absl::StatusOr<PackedRequest> whole = plan.Concat(pointers);
  if (!whole.ok()) return refused(whole.status().message());
  Answer answer = RunOn(executor, signature, *whole);
  if (!answer.failure.ok()) return answer.failure;
  auto parts = plan.SplitOutputs(answer.outputs, rows);
  if (!parts.ok()) return refused(parts.status().message());
  *outputs = *std::move(parts);
  return {};
}

void ServingGroup::Count(const Timing& timing, FailCode code) {
  using Time = GroupMetrics::Time;
  metrics_.AddRequest(code);
  metrics_.Add(Time::kRequest, timing.total);
  if (code != FailCode::kOk) return;
  metrics_.Add(Time::kParse, timing.parse);
  metrics_.Add(Time::kPack, timing.pack);
  metrics_.Add(Time::kQueue, timing.queue);
  metrics_.Add(Time::kBatch, timing.batch);
  metrics_.Add(Time::kRun, timing.run);
  metrics_.Add(Time::kLookup, timing.lookup);
  metrics_.Add(Time::kDense, timing.dense);
  metrics_.Add(Time::kSplit, timing.split);
  metrics_.Add(Time::kReply, timing.reply);
}

absl::Status ServingGroup::RunRecorded(SignatureRunner* runner, const PackedRequest& request,
                                       const std::vector<Piece*>& pieces, std::vector<tensorflow::Tensor>* outputs) {
  thread_local StepRecord record;  // keeps its memory from run to run
  record.Clear();
  std::unique_ptr<RunTrace> trace = traces_.on() ? BeginTrace(request, pieces) : nullptr;
  const int64_t start = clock_.Now();
  absl::Status status;
  {
    const ScopedStep step(metrics_.enabled() ? &record : nullptr);
    try {
      status = trace == nullptr ? runner->Run(request, outputs)
                                : runner->RunTraced(*trace->form, request, outputs, &trace->metadata);
    } catch (...) {
      if (trace != nullptr) traces_.Fail();  // its room is for the next
      throw;
    }
  }
  const int64_t end = clock_.Now();
  // A tower that is stock TensorFlow's is what is left of the run.
  const int64_t rest = std::max<int64_t>(0, end - start - record.lookup_ns - record.pack_ns);
  int64_t rows = 0;
  for (Piece* piece : pieces) {
    piece->batched_ns = start;
    piece->run_ns = piece->split_ns = end;
    AsRequest(piece).lookup_ns = record.lookup_ns;
    AsRequest(piece).dense_ns = record.dense_ns > 0 ? record.dense_ns : rest;
    rows += piece->rows;
  }
  metrics_.AddRun(rows, static_cast<int64_t>(pieces.size()), record);
  if (trace != nullptr) EndTrace(std::move(trace), status, pieces);
  return status;
}

Runner::Outcome ServingGroup::Run(int executor, const std::vector<Piece*>& pieces) {
  RequestPiece& first = AsRequest(pieces[0]);
  const GroupSignature& signature = *first.signature;
  SignatureRunner& runner = signature.runner(executor);
  if (pieces.size() == 1) {
    const absl::Status status = RunRecorded(&runner, first.request, pieces, &first.outputs);
    if (!status.ok()) first.failure = RunFailure(runner, status, first.request);
    return Outcome::kDone;
  }
  std::vector<const PackedRequest*> requests;
  std::vector<int64_t> rows;
  for (Piece* piece : pieces) {
    requests.push_back(&AsRequest(piece).request);
    rows.push_back(piece->rows);
  }
  const absl::StatusOr<PackedRequest> batch = signature.batch()->Concat(requests);
  if (!batch.ok()) return Outcome::kApart;
  std::vector<tensorflow::Tensor> outputs;
  const absl::Status status = RunRecorded(&runner, *batch, pieces, &outputs);
  // One request may claim a tensor that memory does not suffice for; the others do not.
  if (IsAboutInput(status) || absl::IsResourceExhausted(status)) return Outcome::kApart;
  if (!status.ok()) {
    FailAll(pieces, FailCode::kInternal, Stage::kRun, runner.FailureText(status, *batch));
    return Outcome::kDone;
  }
  absl::StatusOr<std::vector<std::vector<tensorflow::Tensor>>> parts = signature.batch()->SplitOutputs(outputs, rows);
  if (!parts.ok()) {
    const std::string message = signature.plan().context + ": " + std::string(parts.status().message());
    FailAll(pieces, FailCode::kInternal, Stage::kBatch, message);
    return Outcome::kDone;
  }
  for (size_t i = 0; i < pieces.size(); ++i) AsRequest(pieces[i]).outputs = std::move((*parts)[i]);
  const int64_t now = clock_.Now();
  for (Piece* piece : pieces) piece->split_ns = now;
  return Outcome::kDone;
}

}  // namespace tfctr
