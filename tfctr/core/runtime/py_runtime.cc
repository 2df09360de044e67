#include "tfctr/core/runtime/py_runtime.h"

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

// pybind11 keeps holders of non-const objects.
struct ModelHandle {
  std::shared_ptr<const Model> model;

  ~ModelHandle() {
    // May end the TensorFlow session, which takes a while and needs no Python.
    const py::gil_scoped_release released;
    model.reset();
  }
};

std::unique_ptr<ModelHandle> Load(const std::string& path, const std::vector<std::string>& tags, int intra_op_threads,
                                  const py::bytes& config, const DeviceMap& devices) {
  ModelOptions options{path, tags, intra_op_threads, {}, devices};
  if (!options.config.ParseFromString(std::string(config))) {
    throw py::value_error("config is no serialised ConfigProto");
  }
  absl::StatusOr<std::shared_ptr<const Model>> model;
  {
    const py::gil_scoped_release released;
    model = Model::Load(options);
  }
  if (!model.ok()) {
    const absl::Status& status = model.status();
    const py::object type = py::module_::import("tfctr.core._native").attr("LoadFailed");
    const py::object error = type(absl::StatusCodeToString(status.code()), std::string(status.message()));
    PyErr_SetObject(type.ptr(), error.ptr());
    throw py::error_already_set();
  }
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

py::object Copy(const tensorflow::Tensor& tensor, const py::object& dtype) {
  return TensorToArray(tensorflow::Tensor(tensor), dtype);
}

}  // namespace

void BindRuntime(py::module_& module) {
  py::exception<void> load_failed(module, "LoadFailed");
  load_failed.attr("__doc__") = "TensorFlow could not load a SavedModel; args are (status code name, message).";

  py::class_<ModelHandle>(module, "Model", "A loaded SavedModel.")
      .def(py::init(&Load), py::arg("path"), py::arg("tags"), py::arg("intra_op_threads"),
           py::arg("config") = py::bytes(), py::arg("devices") = DeviceMap(),
           "Loads the SavedModel in `path`, restores variables and runs the init op. config: serialised ConfigProto, "
           "merged over the defaults; devices: device string -> where its nodes go. Raises LoadFailed.")
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
      .def("predict_traced", &Predictor::PredictTraced, py::arg("request"),
           "As predict, with op times: (outputs, serialised RunMetadata).")
      .def("requests", &Predictor::Requests, "Requests that reached the graph: {'plain', 'split', 'repeated'}.")
      .def("pack", &Predictor::PackRequest, py::arg("request"), "dict of inputs -> PackedRequest.")
      .def("run_packed", &Predictor::RunPacked, py::arg("request"), "PackedRequest -> dict of outputs.");
}

}  // namespace tfctr
