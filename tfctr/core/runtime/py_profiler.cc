#include "tfctr/core/runtime/py_profiler.h"

#include <memory>
#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "tsl/profiler/lib/profiler_session.h"

namespace py = pybind11;

namespace tfctr {
namespace {

// The process's one profiler, running from construction on. Not thread-safe.
class Profiler {
 public:
  Profiler(int host_level, int device_level) {
    tensorflow::ProfileOptions options = tsl::ProfilerSession::DefaultOptions();
    options.set_host_tracer_level(static_cast<uint32_t>(host_level));
    options.set_device_tracer_level(static_cast<uint32_t>(device_level));
    options.set_enable_hlo_proto(false);
    const py::gil_scoped_release released;
    session_ = tsl::ProfilerSession::Create(options);
    const absl::Status status = session_->Status();
    // pybind11 makes a RuntimeError of it; somebody else's session is the one reason there is.
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }

  py::bytes Stop() {
    if (session_ == nullptr) throw std::runtime_error("the profiler was stopped before");
    std::string seen;
    {
      const py::gil_scoped_release released;
      tensorflow::profiler::XSpace space;
      const absl::Status status = session_->CollectData(&space);
      session_.reset();
      if (!status.ok()) throw std::runtime_error(std::string(status.message()));
      seen = space.SerializeAsString();
    }
    return py::bytes(seen);
  }

 private:
  std::unique_ptr<tsl::ProfilerSession> session_;
};

}  // namespace

void BindProfiler(py::module_& module) {
  py::class_<Profiler>(module, "Profiler",
                       "TensorFlow's profiler of this process; it runs from construction to stop().")
      .def(py::init<int, int>(), py::arg("host_level"), py::arg("device_level"),
           "host_level: 1 to 3; 3: cheap ops, too. RuntimeError where somebody profiles already.")
      .def("stop", &Profiler::Stop, "The serialised XSpace.");
}

}  // namespace tfctr
