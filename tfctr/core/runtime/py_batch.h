// Binds BatchPlan for tests and benchmarks: class Batcher of the native module.
#ifndef TFCTR_CORE_RUNTIME_PY_BATCH_H_
#define TFCTR_CORE_RUNTIME_PY_BATCH_H_

#include "pybind11/pybind11.h"

namespace tfctr {

void BindBatch(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_BATCH_H_
