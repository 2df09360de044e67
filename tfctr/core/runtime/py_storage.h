// Python face of the storage library, for the converter and tests.
#ifndef TFCTR_CORE_RUNTIME_PY_STORAGE_H_
#define TFCTR_CORE_RUNTIME_PY_STORAGE_H_

#include <pybind11/pybind11.h>

namespace tfctr {

// Adds the functions over table files, vocabulary files and checkpoints, and the exception CorruptFile, to `module`.
void BindStorage(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_STORAGE_H_
