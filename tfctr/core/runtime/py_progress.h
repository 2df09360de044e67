// Long native work called from Python: without the GIL, with progress, and stopped by Ctrl-C.
#ifndef TFCTR_CORE_RUNTIME_PY_PROGRESS_H_
#define TFCTR_CORE_RUNTIME_PY_PROGRESS_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>

#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

// Runs `copy` (CopyProgress -> Status) without the GIL. Between blocks it calls `progress` (None: nobody) and looks for
// signals, so that Ctrl-C stops a long copy; what they raise is raised here, and nothing is left on disk.
template <typename Copy>
void RunCopy(const pybind11::object& progress, const Copy& copy) {
  std::exception_ptr raised;
  const auto report = [&](uint64_t bytes) {
    pybind11::gil_scoped_acquire acquire;
    try {
      if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
      if (!progress.is_none()) progress(bytes);
      return true;
    } catch (...) {
      raised = std::current_exception();
      return false;
    }
  };
  Status status;
  {
    pybind11::gil_scoped_release release;
    status = copy(report);
  }
  if (raised) std::rethrow_exception(raised);
  Check(status);
}

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_PROGRESS_H_
