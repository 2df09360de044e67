// Python face of wire/json_text.h.
#ifndef TFCTR_CORE_RUNTIME_PY_JSON_H_
#define TFCTR_CORE_RUNTIME_PY_JSON_H_

#include <pybind11/pybind11.h>

namespace tfctr {

void BindJson(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_JSON_H_
