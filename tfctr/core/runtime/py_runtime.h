// Python face of the executor and the packer.
#ifndef TFCTR_CORE_RUNTIME_PY_RUNTIME_H_
#define TFCTR_CORE_RUNTIME_PY_RUNTIME_H_

#include <memory>

#include "pybind11/pybind11.h"
#include "tfctr/core/runtime/executor.h"

namespace tfctr {

// The Python object Model. pybind11 keeps holders of non-const objects.
struct ModelHandle {
  std::shared_ptr<const Model> model;

  ~ModelHandle() {
    // May end the TensorFlow session, which takes a while and needs no Python.
    const pybind11::gil_scoped_release released;
    model.reset();
  }
};

// Adds Model, Predictor and PackedRequest to `module`.
void BindRuntime(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_RUNTIME_H_
