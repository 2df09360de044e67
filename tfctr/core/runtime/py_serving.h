// Python face of serving groups.
#ifndef TFCTR_CORE_RUNTIME_PY_SERVING_H_
#define TFCTR_CORE_RUNTIME_PY_SERVING_H_

#include "pybind11/pybind11.h"

namespace tfctr {

// Adds Group, ServedSignature, Call, Reply, Timing and ServeFailed to `module`. After BindRuntime.
void BindServing(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_SERVING_H_
