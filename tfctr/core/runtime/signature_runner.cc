#include "tfctr/core/runtime/signature_runner.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "tfctr/core/kernels/unpack_slices.h"

namespace tfctr {

namespace {

// TensorFlow's message on one line, without the trail of graph nodes below it.
std::string FirstLines(const absl::Status& status) {
  std::string text(status.message());
  for (const char* mark : {"\n\t [[{{node", "\n\t [[", "\nOriginal stack trace", "\nErrors may have originated"}) {
    const size_t at = text.find(mark);
    if (at != std::string::npos) text.resize(at);
  }
  for (char& c : text) {
    if (c == '\n' || c == '\t') c = ' ';
  }
  return text;
}

// Weights that became constants are no part of what a graph looks like. Shape and type stay.
void DropLargeValue(tensorflow::NodeDef* node) {
  constexpr size_t kLarge = 256;
  if (node->op() != "Const") return;
  const auto found = node->mutable_attr()->find("value");
  if (found == node->mutable_attr()->end() || found->second.ByteSizeLong() <= kLarge) return;
  tensorflow::TensorProto small;
  small.set_dtype(found->second.tensor().dtype());
  *small.mutable_tensor_shape() = found->second.tensor().tensor_shape();
  *found->second.mutable_tensor() = std::move(small);
}

bool Contains(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

}  // namespace

void MarkOptional(const Model& model, SignaturePlan* plan) {
  for (Part& part : plan->parts) {
    part.optional = part.optional || (!plan->plain.packed && part.feature < 0 && model.HasDefault(part.tensor));
  }
}

bool IsAboutInput(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsOutOfRange(status) || absl::IsDataLoss(status);
}

absl::StatusOr<std::unique_ptr<SignatureRunner>> SignatureRunner::Make(std::shared_ptr<const Model> model,
                                                                       const SignaturePlan& plan) {
  std::unique_ptr<SignatureRunner> runner(new SignatureRunner(std::move(model), plan));
  absl::StatusOr<std::unique_ptr<Program>> program = runner->MakeProgram(/*split=*/false, {}, Trace::kNone);
  if (!program.ok()) return program.status();
  runner->program_ = *std::move(program);
  if (plan.split.has_value()) {
    program = runner->MakeProgram(/*split=*/true, {}, Trace::kNone);
    if (!program.ok()) return program.status();
    runner->split_program_ = *std::move(program);
  }
  return runner;
}

absl::StatusOr<std::unique_ptr<Program>> SignatureRunner::MakeProgram(bool split, const std::vector<int>& absent,
                                                                      Trace trace) const {
  const Form& form = FormOf(split);
  std::vector<std::string> feeds, fetches;
  if (form.packed) {
    feeds = {form.arena, form.shapes};
    if (!form.strings.empty()) feeds.push_back(form.strings);
  } else {
    for (size_t i = 0; i < form.parts.size(); ++i) {
      if (!Contains(absent, form.parts[i])) feeds.push_back(form.tensors[i]);
    }
  }
  for (const Output& output : form.outputs) fetches.push_back(output.tensor);
  absl::StatusOr<std::unique_ptr<Program>> program = Program::Make(model_, feeds, fetches, trace);
  if (!program.ok()) return absl::InternalError(plan_.context + ": " + FirstLines(program.status()));
  return program;
}

absl::StatusOr<std::vector<tensorflow::Tensor>> SignatureRunner::Feeds(const PackedRequest& request) const {
  const Form& form = FormOf(request.split);
  std::vector<tensorflow::Tensor> feeds;
  if (form.packed) {
    feeds = {request.arena, request.shapes};
    if (!form.strings.empty()) feeds.push_back(request.strings);
    return feeds;
  }
  std::vector<PackedInput> inputs;
  absl::Status status = ParsePackedTensors(form.element_bytes, request.arena, request.shapes, request.strings, &inputs);
  feeds.reserve(inputs.size());
  for (size_t i = 0; status.ok() && i < inputs.size(); ++i) {
    if (Contains(request.absent, form.parts[i])) continue;
    feeds.emplace_back();
    status = PackedSlice(inputs[i], form.layout[i], request.arena, request.strings, &feeds.back());
  }
  if (!status.ok()) return absl::InternalError(status.message());
  return feeds;
}

absl::StatusOr<const Program*> SignatureRunner::ProgramFor(const PackedRequest& request, Trace trace) {
  if (request.split && split_program_ == nullptr) {
    return absl::InternalError("a request that was packed for another signature");
  }
  if (request.absent.empty() && trace == Trace::kNone) return request.split ? split_program_.get() : program_.get();
  const std::lock_guard<std::mutex> lock(others_mutex_);
  std::unique_ptr<Program>& program = others_[{request.split, trace, request.absent}];
  if (program == nullptr) {
    absl::StatusOr<std::unique_ptr<Program>> made = MakeProgram(request.split, request.absent, trace);
    if (!made.ok()) return made.status();
    program = *std::move(made);
  }
  return program.get();
}

absl::Status SignatureRunner::Run(const PackedRequest& request, std::vector<tensorflow::Tensor>* outputs,
                                  tensorflow::RunMetadata* metadata, Trace trace) {
  const absl::StatusOr<const Program*> program = ProgramFor(request, trace);
  if (!program.ok()) return program.status();
  const absl::StatusOr<std::vector<tensorflow::Tensor>> feeds = Feeds(request);
  if (!feeds.ok()) return feeds.status();
  return (*program)->Run(*feeds, outputs, metadata);
}

void SignatureRunner::PrepareTrace(const PackedRequest& request, bool run) {
  static std::atomic<int64_t> forms{0};
  auto form = std::make_shared<TracedForm>();
  form->id = ++forms;
  absl::StatusOr<std::unique_ptr<Program>> program = MakeProgram(request.split, request.absent, Trace::kHostTimes);
  if (program.ok()) {
    form->program = *std::move(program);
  } else {
    form->error = program.status().message();
  }
  if (form->program != nullptr && run) {
    absl::StatusOr<std::string> graphs;
    try {
      graphs = LearnGraphs(request);
    } catch (const std::exception& error) {  // of a kernel; the request itself was answered
      graphs = absl::InternalError(error.what());
    }
    if (graphs.ok()) {
      form->graphs = *graphs;
    } else {
      form->error = graphs.status().message();
    }
  }
  const std::lock_guard<std::mutex> lock(traced_mutex_);
  traced_[{request.split, request.absent}] = std::move(form);
}

absl::StatusOr<std::string> SignatureRunner::LearnGraphs(const PackedRequest& request) const {
  // A program of its own, for once: every run that records its graph copies all of it.
  absl::StatusOr<std::unique_ptr<Program>> program = MakeProgram(request.split, request.absent, Trace::kGraphOnly);
  if (!program.ok()) return program.status();
  const absl::StatusOr<std::vector<tensorflow::Tensor>> feeds = Feeds(request);
  if (!feeds.ok()) return feeds.status();
  std::vector<tensorflow::Tensor> outputs;
  tensorflow::RunMetadata metadata;
  const absl::Status status = (*program)->Run(*feeds, &outputs, &metadata);
  if (!status.ok()) return absl::Status(status.code(), FirstLines(status));
  for (tensorflow::GraphDef& graph : *metadata.mutable_partition_graphs()) {
    for (tensorflow::NodeDef& node : *graph.mutable_node()) DropLargeValue(&node);
    for (tensorflow::FunctionDef& function : *graph.mutable_library()->mutable_function()) {
      for (tensorflow::NodeDef& node : *function.mutable_node_def()) DropLargeValue(&node);
    }
  }
  return metadata.SerializeAsString();
}

std::shared_ptr<const TracedForm> SignatureRunner::Traced(const PackedRequest& request) const {
  const std::lock_guard<std::mutex> lock(traced_mutex_);
  const auto found = traced_.find({request.split, request.absent});
  return found == traced_.end() ? nullptr : found->second;
}

absl::Status SignatureRunner::RunTraced(const TracedForm& form, const PackedRequest& request,
                                        std::vector<tensorflow::Tensor>* outputs,
                                        tensorflow::RunMetadata* metadata) const {
  const absl::StatusOr<std::vector<tensorflow::Tensor>> feeds = Feeds(request);
  if (!feeds.ok()) return feeds.status();
  return form.program->Run(*feeds, outputs, metadata);
}

void SignatureRunner::DropTraced() {
  std::map<std::pair<bool, std::vector<int>>, std::shared_ptr<const TracedForm>> dropped;  // ends without the lock
  const std::lock_guard<std::mutex> lock(traced_mutex_);
  dropped.swap(traced_);
}

std::string SignatureRunner::FailureText(const absl::Status& status, const PackedRequest& request) const {
  std::string message = FirstLines(status);
  if (message.rfind(plan_.context, 0) != 0) message = plan_.context + ": " + message;
  if (!IsAboutInput(status)) return message + " (" + absl::StatusCodeToString(status.code()) + ")";
  const std::string rows = DescribeRows(plan_, request);
  return rows.empty() ? message : message + "; " + rows;
}

}  // namespace tfctr
