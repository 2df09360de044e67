#include "tfctr/core/runtime/py_runtime.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pybind11/stl.h"
#include "tfctr/core/runtime/executor.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/predictor.h"
#include "tfctr/core/runtime/tensor_array.h"

namespace tfctr {

namespace py = pybind11;

namespace {

EngineChoice ChoiceOf(const py::dict& given) {
  EngineChoice choice;
  for (const auto& [key, value] : given) {
    const std::string name = key.cast<std::string>();
    if (name == "threads") {
      choice.threads = value.cast<int>();
    } else if (name == "provider" || name == "precision" || name == "options") {
      (name == "provider"    ? choice.provider
       : name == "precision" ? choice.precision
                             : choice.options) = value.cast<std::string>();
    } else {
      throw py::value_error("engine: '" + name + "' is none of provider, precision, options, threads");
    }
  }
  return choice;
}

[[noreturn]] void RaiseLoadFailed(const absl::Status& status) {
  const py::object type = py::module_::import("tfctr.core._native").attr("LoadFailed");
  const py::object error = type(absl::StatusCodeToString(status.code()), std::string(status.message()));
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

std::unique_ptr<ModelHandle> Load(const std::string& path, const std::vector<std::string>& tags, int intra_op_threads,
                                  const py::bytes& config, const DeviceMap& devices, const py::dict& engine,
                                  int load_nice) {
  ModelOptions options{path, tags, intra_op_threads, {}, devices, ChoiceOf(engine), load_nice};
  if (!options.config.ParseFromString(std::string(config))) {
    throw py::value_error("config is no serialised ConfigProto");
  }
  absl::StatusOr<std::shared_ptr<const Model>> model;
  {
    const py::gil_scoped_release released;
    model = Model::Load(options);
  }
  if (!model.ok()) RaiseLoadFailed(model.status());
  auto handle = std::make_unique<ModelHandle>();
  handle->model = *std::move(model);
  return handle;
}

py::dict Signatures(const ModelHandle& handle) {
  py::dict result;
  for (const auto& [name, signature] : handle.model->signatures()) {
    result[py::str(name)] = py::bytes(signature.SerializeAsString());
  }
  return result;
}

py::dict Devices(const ModelHandle& handle) {
  py::list asked;
  for (const DeviceUse& use : handle.model->device_uses())
    asked.append(py::make_tuple(use.device, use.ops, use.present));
  py::dict result;
  result["session"] = handle.model->session_devices();
  result["asked"] = asked;
  return result;
}

py::list Engines(const ModelHandle& handle) {
  py::list result;
  for (const EngineUse& use : handle.model->engines()) {
    py::dict entry;
    entry["node"] = use.node;
    entry["label"] = use.label;
    entry["provider"] = use.provider;
    entry["precision"] = use.precision;
    entry["threads"] = use.threads;
    entry["node_def"] = py::bytes(use.node_def);
    result.append(entry);
  }
  return result;
}

// Feeds placeholders `indices` and `filenames` of `node`, which lays these overlays over the store's tables.
void SwapOverlays(const ModelHandle& handle, const std::string& node, const std::string& indices_name,
                  const std::string& filenames_name, const std::vector<int64_t>& indices,
                  const std::vector<std::string>& filenames) {
  if (indices.size() != filenames.size()) throw py::value_error("swap_overlays: as many indices as file names");
  const tensorflow::TensorShape shape({static_cast<int64_t>(indices.size())});
  tensorflow::Tensor numbers(tensorflow::DT_INT64, shape), names(tensorflow::DT_STRING, shape);
  std::copy(indices.begin(), indices.end(), numbers.flat<int64_t>().data());
  for (size_t i = 0; i < filenames.size(); ++i) names.flat<tensorflow::tstring>()(i) = filenames[i];
  absl::Status status;
  {
    const py::gil_scoped_release released;
    status = handle.model->RunNode(node, {{indices_name, numbers}, {filenames_name, names}});
  }
  if (!status.ok()) RaiseLoadFailed(status);
}

py::object Copy(const tensorflow::Tensor& tensor, const py::object& dtype) {
  return TensorToArray(tensorflow::Tensor(tensor), dtype);
}

}  // namespace

void BindRuntime(py::module_& module) {
  py::exception<void> load_failed(module, "LoadFailed");
  load_failed.attr("__doc__") = "TensorFlow could not load a SavedModel; args are (status code name, message).";

  py::class_<ModelHandle>(module, "Model", "A loaded SavedModel.")
      .def(py::init(&Load), py::arg("path"), py::arg("tags"), py::arg("intra_op_threads"),
           py::arg("config") = py::bytes(), py::arg("devices") = DeviceMap(), py::arg("engine") = py::dict(),
           py::arg("load_nice") = 0,
           "Loads the SavedModel in `path`, restores variables and runs the init op. config: serialised ConfigProto, "
           "merged over the defaults; devices: device string -> where its nodes go; engine: provider, precision, "
           "options (JSON) and threads of all dense towers instead of the graph's. load_nice: above 0, niceness of the "
           "thread that loads. Raises LoadFailed.")
      .def("engines", &Engines,
           "Dense towers run by engines: [{'node', 'label', 'provider', 'precision', 'threads', 'node_def'}].")
      .def("swap_overlays", &SwapOverlays, py::arg("node"), py::arg("indices_name"), py::arg("filenames_name"),
           py::arg("indices"), py::arg("filenames"),
           "Lays other overlays over the tables, all as one, between requests; tables that are not named have none "
           "then. Raises LoadFailed, with everything as it was.")
      .def("devices", &Devices, "{'session': [names], 'asked': [(device, {op: nodes}, present)]}.")
      .def("signatures", &Signatures, "Signature name -> serialised SignatureDef.");

  py::class_<PackedRequest>(module, "PackedRequest", "A request in packed form, owning its memory.")
      .def_property_readonly(
          "arena", [](const PackedRequest& self) { return Copy(self.arena, py::dtype::of<uint8_t>()); },
          "Copy of the arena, uint8 [n].")
      .def_property_readonly(
          "shapes", [](const PackedRequest& self) { return Copy(self.shapes, py::dtype::of<int64_t>()); },
          "Copy of the shapes, int64 [m].")
      .def_property_readonly(
          "strings", [](const PackedRequest& self) { return Copy(self.strings, py::dtype("O")); },
          "Copy of the strings, object [s] of bytes.")
      .def_readonly("split", &PackedRequest::split, "Whether it is for the split form.")
      .def_readonly("repeated", &PackedRequest::repeated, "Whether user rows were repeated for every candidate.");

  py::class_<SignaturePlan>(module, "Packer", "Packs the requests of one signature, without a model.")
      .def(py::init<const py::dict&>(), py::arg("description"))
      .def("pack", &PackOrRaise, py::arg("request"),
           "dict of inputs -> PackedRequest. Raises tfctr.errors.InputError.");

  py::class_<Predictor>(module, "Predictor", "One signature of a Model; thread-safe.")
      .def(py::init([](const ModelHandle& handle, const py::dict& description) {
             return std::make_unique<Predictor>(handle.model, description);
           }),
           py::arg("model"), py::arg("description"))
      .def("predict", &Predictor::Predict, py::arg("request"),
           "dict of inputs -> dict of outputs (np.ndarray). Raises tfctr.errors.InputError.")
      .def("predict_traced", &Predictor::PredictTraced, py::arg("request"), py::arg("graphs") = false,
           "As predict, with op times: (outputs, serialised RunMetadata). graphs: partition graphs, too.")
      .def("requests", &Predictor::Requests, "Requests that reached the graph: {'plain', 'split', 'repeated'}.")
      .def("pack", &Predictor::PackRequest, py::arg("request"), "dict of inputs -> PackedRequest.")
      .def("run_packed", &Predictor::RunPacked, py::arg("request"), "PackedRequest -> dict of outputs.");
}

}  // namespace tfctr
