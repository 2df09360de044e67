#include "tfctr/core/runtime/predictor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tfctr/core/kernels/unpack_slices.h"
#include "tfctr/core/runtime/tensor_array.h"

namespace tfctr {

namespace py = pybind11;

void RaiseError(const char* error_class, const std::string& message) {
  const py::object type = py::module_::import("tfctr.errors").attr(error_class);
  PyErr_SetObject(type.ptr(), py::str(message).ptr());
  throw py::error_already_set();
}

PackedRequest PackOrRaise(const SignaturePlan& plan, const py::dict& request) {
  try {
    return Pack(plan, request);
  } catch (const BadRequest& error) {
    RaiseError("InputError", error.what());
  }
}

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

bool Contains(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

bool IsAboutInput(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsOutOfRange(status) || absl::IsDataLoss(status);
}

}  // namespace

Predictor::Predictor(std::shared_ptr<const Model> model, const py::dict& description)
    : model_(std::move(model)), plan_(description) {
  for (const Output& output : plan_.plain.outputs) output_names_.push_back(py::str(output.name));
  for (Part& part : plan_.parts) {
    part.optional = part.optional || (!plan_.plain.packed && part.feature < 0 && model_->HasDefault(part.tensor));
  }
  program_ = MakeProgram(/*split=*/false, {}, /*trace=*/false);
  if (plan_.split.has_value()) split_program_ = MakeProgram(/*split=*/true, {}, /*trace=*/false);
}

Predictor::~Predictor() {
  // The last reference may end a TensorFlow session, which takes a while and needs no Python.
  const py::gil_scoped_release released;
  others_.clear();
  split_program_.reset();
  program_.reset();
  model_.reset();
}

std::unique_ptr<Program> Predictor::MakeProgram(bool split, const std::vector<int>& absent, bool trace) const {
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
  absl::StatusOr<std::unique_ptr<Program>> program;
  {
    const py::gil_scoped_release released;
    program = Program::Make(model_, feeds, fetches, trace);
  }
  if (!program.ok()) RaiseError("InternalError", plan_.context + ": " + FirstLines(program.status()));
  return *std::move(program);
}

std::vector<tensorflow::Tensor> Predictor::Feeds(const PackedRequest& request) const {
  const Form& form = FormOf(request.split);
  if (form.packed) {
    std::vector<tensorflow::Tensor> feeds = {request.arena, request.shapes};
    if (!form.strings.empty()) feeds.push_back(request.strings);
    return feeds;
  }
  std::vector<PackedInput> inputs;
  absl::Status status = ParsePackedTensors(form.element_bytes, request.arena, request.shapes, request.strings, &inputs);
  std::vector<tensorflow::Tensor> feeds;
  feeds.reserve(inputs.size());
  for (size_t i = 0; status.ok() && i < inputs.size(); ++i) {
    if (Contains(request.absent, form.parts[i])) continue;
    feeds.emplace_back();
    status = PackedSlice(inputs[i], form.layout[i], request.arena, request.strings, &feeds.back());
  }
  if (!status.ok()) RaiseError("InternalError", plan_.context + ": " + std::string(status.message()));
  return feeds;
}

void Predictor::FailRun(const absl::Status& status, const PackedRequest& request) const {
  std::string message = plan_.context + ": " + FirstLines(status);
  if (!IsAboutInput(status)) RaiseError("TfctrError", message + " (" + absl::StatusCodeToString(status.code()) + ")");
  const std::string rows = DescribeRows(plan_, request);
  if (!rows.empty()) message += "; " + rows;
  RaiseError("InputError", message);
}

py::dict Predictor::Run(const Program& program, const PackedRequest& request, tensorflow::RunMetadata* metadata) {
  std::vector<tensorflow::Tensor> outputs;
  ++(request.split ? split_runs_ : plain_runs_);
  if (request.repeated) ++repeated_;
  {
    std::vector<tensorflow::Tensor> feeds = Feeds(request);
    absl::Status status;
    {
      const py::gil_scoped_release released;
      status = program.Run(feeds, &outputs, metadata);
      feeds.clear();
    }
    if (!status.ok()) FailRun(status, request);
  }
  py::dict result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    result[output_names_[i]] = TensorToArray(std::move(outputs[i]), plan_.plain.outputs[i].numpy);
  }
  return result;
}

const Program& Predictor::ProgramFor(const PackedRequest& request, bool trace) {
  if (request.absent.empty() && !trace) return request.split ? *split_program_ : *program_;
  std::unique_lock<std::mutex> lock(others_mutex_, std::defer_lock);
  {
    const py::gil_scoped_release released;  // never wait for the mutex with the GIL held
    lock.lock();
  }
  std::unique_ptr<Program>& program = others_[{request.split, trace, request.absent}];
  if (program == nullptr) program = MakeProgram(request.split, request.absent, trace);
  return *program;
}

py::dict Predictor::Predict(const py::dict& request) { return RunPacked(PackRequest(request)); }

py::dict Predictor::RunPacked(const PackedRequest& request) {
  if (request.split && !plan_.split.has_value()) {
    RaiseError("InternalError", plan_.context + ": a request that was packed for another signature");
  }
  return Run(ProgramFor(request, /*trace=*/false), request, nullptr);
}

py::tuple Predictor::PredictTraced(const py::dict& request) {
  const PackedRequest packed = PackRequest(request);
  tensorflow::RunMetadata metadata;
  py::dict outputs = Run(ProgramFor(packed, /*trace=*/true), packed, &metadata);
  return py::make_tuple(outputs, py::bytes(metadata.SerializeAsString()));
}

py::dict Predictor::Requests() const {
  py::dict counts;
  counts["plain"] = plain_runs_.load();
  counts["split"] = split_runs_.load();
  counts["repeated"] = repeated_.load();
  return counts;
}

}  // namespace tfctr
