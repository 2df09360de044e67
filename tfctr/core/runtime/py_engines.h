// Python face of engines: tfctr/engines/native.py is what people call.
#ifndef TFCTR_CORE_RUNTIME_PY_ENGINES_H_
#define TFCTR_CORE_RUNTIME_PY_ENGINES_H_

#include <pybind11/pybind11.h>

namespace tfctr {

void BindEngines(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_ENGINES_H_
