// Python face of the executor and the packer.
#ifndef TFCTR_CORE_RUNTIME_PY_RUNTIME_H_
#define TFCTR_CORE_RUNTIME_PY_RUNTIME_H_

#include "pybind11/pybind11.h"

namespace tfctr {

// Adds Model, Predictor and PackedRequest to `module`.
void BindRuntime(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_RUNTIME_H_
