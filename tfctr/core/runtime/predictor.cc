#include "tfctr/core/runtime/predictor.h"

#include <string>
#include <utility>

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

Predictor::Predictor(std::shared_ptr<const Model> model, const py::dict& description) : plan_(description) {
  for (const Output& output : plan_.plain.outputs) output_names_.push_back(py::str(output.name));
  MarkOptional(*model, &plan_);
  absl::StatusOr<std::unique_ptr<SignatureRunner>> runner;
  {
    const py::gil_scoped_release released;
    runner = SignatureRunner::Make(std::move(model), plan_);
  }
  if (!runner.ok()) RaiseError("InternalError", std::string(runner.status().message()));
  runner_ = *std::move(runner);
}

Predictor::~Predictor() {
  // The last reference may end a TensorFlow session, which takes a while and needs no Python.
  const py::gil_scoped_release released;
  runner_.reset();
}

py::dict Predictor::Run(const PackedRequest& request, tensorflow::RunMetadata* metadata, Trace trace) {
  std::vector<tensorflow::Tensor> outputs;
  ++(request.split ? split_runs_ : plain_runs_);
  if (request.repeated) ++repeated_;
  absl::Status status;
  {
    const py::gil_scoped_release released;
    status = runner_->Run(request, &outputs, metadata, trace);
  }
  if (!status.ok()) {
    RaiseError(IsAboutInput(status) ? "InputError" : "TfctrError", runner_->FailureText(status, request));
  }
  py::dict result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    result[output_names_[i]] = TensorToArray(std::move(outputs[i]), plan_.plain.outputs[i].numpy);
  }
  return result;
}

py::dict Predictor::Predict(const py::dict& request) { return RunPacked(PackRequest(request)); }

py::dict Predictor::RunPacked(const PackedRequest& request) {
  if (request.split && !plan_.split.has_value()) {
    RaiseError("InternalError", plan_.context + ": a request that was packed for another signature");
  }
  return Run(request);
}

py::tuple Predictor::PredictTraced(const py::dict& request, bool graphs) {
  const PackedRequest packed = PackRequest(request);
  tensorflow::RunMetadata metadata;
  py::dict outputs = Run(packed, &metadata, graphs ? Trace::kGraphs : Trace::kTimes);
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
