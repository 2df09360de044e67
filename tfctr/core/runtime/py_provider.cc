#include "tfctr/core/runtime/py_provider.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tfctr/core/engines/engine.h"
#include "tfctr/core/storage/json.h"

namespace py = pybind11;

namespace tfctr {
namespace {

// A Python object whose last reference may go in a thread that has no GIL, or after the interpreter's end.
class Kept {
 public:
  explicit Kept(py::object object) : object_(object.release().ptr()) {}
  ~Kept() {
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    Py_DECREF(object_);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  py::object get() const { return py::reinterpret_borrow<py::object>(object_); }

 private:
  PyObject* const object_;
};

// The GIL is taken around `work`; what it raises becomes a status with the exception's text.
template <typename Work>
Status WithPython(const Work& work) {
  const py::gil_scoped_acquire gil;
  try {
    work();
    return Status::Ok();
  } catch (py::error_already_set& error) {
    // Io, not Invalid: the request was checked before.
    const std::string type = py::str(error.type().attr("__name__"));
    return Status::Io(type + ": " + std::string(py::str(error.value())));
  } catch (const std::exception& error) {
    return Status::Io(error.what());
  }
}

std::string TensorsText(const EngineSpec& spec, const std::vector<EngineTensor>& tensors) {
  std::string text = "[";
  for (const EngineTensor& tensor : tensors) {
    text += (text.size() > 1 ? "," : "") + ("{\"name\":" + JsonText(tensor.name)) +
            ",\"dtype\":" + JsonText(DTypeName(tensor.dtype)) + ",\"shape\":[";
    for (size_t d = 0; d < tensor.dims.size(); ++d) {
      const EngineDim& dim = tensor.dims[d];
      text += d == 0 ? "" : ",";
      text += dim.open < 0 ? std::to_string(dim.size) : JsonText(spec.open_names[static_cast<size_t>(dim.open)]);
    }
    text += "]}";
  }
  return text + "]";
}

std::string SpecText(const EngineSpec& spec) {
  std::string files = "[";
  for (const EngineFile& file : spec.files) {
    files += (files.size() > 1 ? "," : "") + ("{\"role\":" + JsonText(file.role)) +
             ",\"path\":" + JsonText(file.blob->path()) + ",\"fingerprint\":" + JsonText(file.blob->fingerprint()) +
             '}';
  }
  return "{\"provider\":" + JsonText(spec.provider) + ",\"precision\":" + JsonText(spec.precision) +
         ",\"inputs\":" + TensorsText(spec, spec.inputs) + ",\"outputs\":" + TensorsText(spec, spec.outputs) +
         ",\"files\":" + files + "],\"options\":" + (spec.options.empty() ? "{}" : spec.options) +
         ",\"threads\":" + std::to_string(spec.threads) + ",\"label\":" + JsonText(spec.label) + '}';
}

class PythonEngine : public Engine {
 public:
  PythonEngine(const EngineSpec& spec, py::object runner) : Engine(spec), runner_(std::move(runner)) {}

  ~PythonEngine() override {
    if (!Py_IsInitialized()) return;
    (void)WithPython([this] {
      const py::object runner = runner_.get();
      if (py::hasattr(runner, "close")) runner.attr("close")();
    });
  }

  Result<std::map<std::string, std::string>> Export() override { return std::map<std::string, std::string>(); }

  std::string Describe() override {
    std::string text;
    const Status status = WithPython([&] {
      py::dict described(runner_.get().attr("describe")());
      described["provider"] = spec().provider;
      described["precision"] = spec().precision;
      described["threads"] = spec().threads;
      text = py::str(py::module_::import("json").attr("dumps")(described));
    });
    if (status.ok()) return text;
    return "{\"provider\":" + JsonText(spec().provider) + ",\"error\":" + JsonText(status.message) + '}';
  }

 protected:
  Status RunChecked(const EngineCall& call) override {
    return WithPython([&] {
      py::list inputs;
      for (size_t i = 0; i < spec().inputs.size(); ++i) {
        const InputView& view = call.inputs[i];
        py::tuple shape(view.rank);
        for (int d = 0; d < view.rank; ++d) shape[static_cast<size_t>(d)] = view.dims[d];
        inputs.append(Described(view.data, view.dtype, std::move(shape)));
      }
      py::list outputs;
      for (size_t k = 0; k < spec().outputs.size(); ++k) {
        outputs.append(Described(call.outputs[k], spec().outputs[k].dtype, py::tuple(py::cast(call.dims[k]))));
      }
      runner_.get().attr("run")(inputs, outputs);
    });
  }

 private:
  static py::tuple Described(const void* data, DType dtype, py::tuple shape) {
    return py::make_tuple(reinterpret_cast<uintptr_t>(data), DTypeName(dtype), std::move(shape));
  }

  const Kept runner_;
};

}  // namespace

void RegisterPythonProvider(const std::string& name, py::object open) {
  const auto kept = std::make_shared<const Kept>(std::move(open));
  EngineOpener opener = [kept](const EngineSpec& spec) -> Result<std::shared_ptr<Engine>> {
    std::shared_ptr<Engine> engine;
    const Status status =
        WithPython([&] { engine = std::make_shared<PythonEngine>(spec, kept->get()(py::str(SpecText(spec)))); });
    if (!status.ok()) return status;
    return engine;
  };
  const py::gil_scoped_release released;
  RegisterEngineProvider(name, std::move(opener));
}

py::dtype NumpyType(DType dtype) {
  if (dtype == DType::kBFloat16) {
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  }
  return py::dtype(DTypeName(dtype));
}

}  // namespace tfctr
