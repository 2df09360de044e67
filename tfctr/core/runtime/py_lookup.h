// Python face of the lookup kernels: which instruction set they run with.
#ifndef TFCTR_CORE_RUNTIME_PY_LOOKUP_H_
#define TFCTR_CORE_RUNTIME_PY_LOOKUP_H_

#include <pybind11/pybind11.h>

namespace tfctr {

void BindLookup(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_LOOKUP_H_
