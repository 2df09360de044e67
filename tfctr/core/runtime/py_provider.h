// Providers of engines that are written in Python. tfctr/engines/native.py describes the protocol.
//
// Thread-safety: runs may come from any thread, without the GIL; it is taken around each Python call.
#ifndef TFCTR_CORE_RUNTIME_PY_PROVIDER_H_
#define TFCTR_CORE_RUNTIME_PY_PROVIDER_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>

#include "tfctr/core/storage/dtype.h"

namespace tfctr {

// `open`: a callable that takes the spec as JSON and returns an object with run and describe.
void RegisterPythonProvider(const std::string& name, pybind11::object open);

// bfloat16 is ml_dtypes'.
pybind11::dtype NumpyType(DType dtype);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_PROVIDER_H_
