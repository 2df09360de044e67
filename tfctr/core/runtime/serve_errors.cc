#include "tfctr/core/runtime/serve_errors.h"

namespace tfctr {

namespace py = pybind11;

namespace {

// Lives as long as the process, as the module does.
PyObject* g_serve_failed = nullptr;

}  // namespace

void BindServeFailed(py::module_& module) {
  g_serve_failed = PyErr_NewExceptionWithDoc(
      "tfctr.core._native.ServeFailed",
      "A request that was not answered. code: name of a gRPC status; message; stage: parse, pack, queue, batch, run, "
      "reply or \"\".",
      nullptr, nullptr);
  if (g_serve_failed == nullptr) throw py::error_already_set();
  module.add_object("ServeFailed", py::reinterpret_borrow<py::object>(g_serve_failed));
}

py::object ServeError(const Failure& failure) {
  const py::handle type(g_serve_failed);
  // Bytes of a request may be part of the message.
  const py::object message = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      failure.message.data(), static_cast<Py_ssize_t>(failure.message.size()), "backslashreplace"));
  if (!message) throw py::error_already_set();
  py::object error = type(message);
  error.attr("code") = FailCodeName(failure.code);
  error.attr("message") = message;
  error.attr("stage") = StageName(failure.stage);
  return error;
}

void RaiseServeFailed(const Failure& failure) {
  const py::object error = ServeError(failure);
  PyErr_SetObject(g_serve_failed, error.ptr());
  throw py::error_already_set();
}

}  // namespace tfctr
