// The wire formats for Python.
#ifndef TFCTR_CORE_RUNTIME_PY_WIRE_H_
#define TFCTR_CORE_RUNTIME_PY_WIRE_H_

#include "pybind11/pybind11.h"

namespace tfctr {

void BindWire(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_WIRE_H_
