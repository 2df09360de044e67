#include "tfctr/core/runtime/py_engines.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tfctr/core/engines/cpu.h"
#include "tfctr/core/engines/engine.h"
#include "tfctr/core/runtime/py_provider.h"
#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/storage/store.h"

namespace py = pybind11;

namespace tfctr {
namespace {

using Described = std::vector<std::tuple<std::string, std::string, std::string>>;  // name, dtype, dims

EngineSpec SpecOf(const py::dict& given) {
  EngineSpec spec;
  spec.provider = given["provider"].cast<std::string>();
  spec.precision = given["precision"].cast<std::string>();
  spec.options = given["options"].cast<std::string>();
  spec.threads = given["threads"].cast<int>();
  spec.label = given["label"].cast<std::string>();
  const auto check = [&spec](Status status) {
    if (status.ok()) return;
    status.message = spec.Named() + ": " + status.message;
    Raise(status);
  };
  for (const auto& [name, dtype, dims] : given["inputs"].cast<Described>()) {
    check(spec.AddInput(name, DTypeFromName(dtype), dims));
  }
  for (const auto& [name, dtype, dims] : given["outputs"].cast<Described>()) {
    check(spec.AddOutput(name, DTypeFromName(dtype), dims));
  }
  for (const auto& [role, path] : given["files"].cast<std::vector<std::pair<std::string, std::string>>>()) {
    Result<std::shared_ptr<const BlobFile>> blob = Store::Global().Blob(path);
    check(blob.status());
    spec.files.push_back({role, blob.Take()});
  }
  return spec;
}

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

// Outputs in memory of their own, which arrays take over after the run; needs no GIL.
class OwnMemory : public OutputSink {
 public:
  explicit OwnMemory(const EngineSpec& spec) : spec_(spec) {}

  Result<void*> Allocate(size_t index, const std::vector<int64_t>& dims) override {
    const Result<uint64_t> bytes = DenseBytes(spec_.outputs[index].dtype, dims);
    if (!bytes.ok()) return bytes.status();
    constexpr uint64_t kAlign = 64;
    void* memory = std::aligned_alloc(kAlign, (bytes.value() + kAlign) / kAlign * kAlign);
    if (memory == nullptr) return Status::Invalid("no memory for " + std::to_string(bytes.value()) + " bytes");
    memory_.emplace_back(memory);
    dims_.push_back(dims);
    return memory;
  }

  py::list Arrays() {
    py::list arrays;
    for (size_t k = 0; k < memory_.size(); ++k) {
      const py::capsule owner(memory_[k].get(), [](void* memory) { std::free(memory); });
      void* data = memory_[k].release();
      arrays.append(py::array(NumpyType(spec_.outputs[k].dtype), dims_[k], data, owner));
    }
    return arrays;
  }

 private:
  const EngineSpec& spec_;
  std::vector<std::unique_ptr<void, FreeMemory>> memory_;
  std::vector<std::vector<int64_t>> dims_;
};

class EngineHandle {
 public:
  explicit EngineHandle(const py::dict& given) {
    EngineSpec spec = SpecOf(given);
    label_ = spec.label;
    Result<std::shared_ptr<Engine>> engine = Status();
    {
      const py::gil_scoped_release released;
      engine = OpenEngine(spec);
    }
    engine_ = Unwrap(std::move(engine));
  }

  ~EngineHandle() {
    const py::gil_scoped_release released;  // may end the engine
    engine_.reset();
  }

  py::list Run(const std::vector<py::array>& arrays) const {
    std::vector<InputView> views;
    std::vector<std::vector<int64_t>> dims;
    dims.reserve(arrays.size());
    for (const py::array& array : arrays) {
      dims.emplace_back(array.shape(), array.shape() + array.ndim());
      views.push_back({DTypeFromName(array.dtype().attr("name").cast<std::string>()), array.data(), dims.back().data(),
                       static_cast<int>(array.ndim())});
    }
    OwnMemory outputs(engine_->spec());
    Status status;
    {
      const py::gil_scoped_release released;
      status = engine_->Run(views, &outputs, &label_);
    }
    if (!status.ok() && status.code != Code::kInvalid) throw std::runtime_error(status.message);
    Check(status);
    return outputs.Arrays();
  }

  py::dict Export() const {
    Result<std::map<std::string, std::string>> blobs = Status();
    {
      const py::gil_scoped_release released;
      blobs = engine_->Export();
    }
    py::dict result;
    for (const auto& [role, bytes] : Unwrap(std::move(blobs))) result[py::str(role)] = py::bytes(bytes);
    return result;
  }

  std::string Describe() const {
    const py::gil_scoped_release released;
    return engine_->Describe();
  }

 private:
  std::string label_;
  std::shared_ptr<Engine> engine_;
};

py::dict BlobInfo(const py::object& path) {
  const std::shared_ptr<const BlobFile> blob = Unwrap(BlobFile::Open(PathOf(path)));
  py::dict info;
  info["kind"] = "blob";
  info["path"] = blob->path();
  info["bytes"] = blob->bytes();
  info["fingerprint"] = blob->fingerprint();
  return info;
}

}  // namespace

void BindEngines(py::module_& module) {
  py::class_<EngineHandle>(module, "DenseEngine", "An open engine; thread-safe. tfctr.engines.native wraps it.")
      .def(py::init<const py::dict&>(), py::arg("spec"))
      .def("run", &EngineHandle::Run, py::arg("inputs"), "Arrays in C order, by the spec -> list of arrays.")
      .def("export", &EngineHandle::Export, "Role of a file -> bytes.")
      .def("describe", &EngineHandle::Describe, "JSON.");
  module.def("register_engine_provider", &RegisterPythonProvider, py::arg("name"), py::arg("open"),
             "open(spec as JSON) -> an object with run and describe.");
  module.def("engine_providers", &EngineProviders, "Providers registered in this process.");
  module.def("blob_info", &BlobInfo, py::arg("path"), "kind, path, bytes and fingerprint of a file of any bytes.");
  module.def("cpu_isa", &CpuIsa, "As tfctr.engines.isa.cpu_isa.");
  module.def(
      "openvino_version", [] { return std::string(TFCTR_OPENVINO_VERSION); },
      "The release of OpenVINO that libtfctr_openvino.so was built against; \"\" when it was not built.");
}

}  // namespace tfctr
