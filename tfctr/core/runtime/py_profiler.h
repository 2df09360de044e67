// TensorFlow's profiler for Python, with the levels that its own Python face leaves at their defaults.
#ifndef TFCTR_CORE_RUNTIME_PY_PROFILER_H_
#define TFCTR_CORE_RUNTIME_PY_PROFILER_H_

#include "pybind11/pybind11.h"

namespace tfctr {

// Adds Profiler to `module`.
void BindProfiler(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_PROFILER_H_
