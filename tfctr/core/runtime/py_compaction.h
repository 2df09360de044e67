// The Python face of storage/compaction.h.
#ifndef TFCTR_CORE_RUNTIME_PY_COMPACTION_H_
#define TFCTR_CORE_RUNTIME_PY_COMPACTION_H_

#include <pybind11/pybind11.h>

namespace tfctr {

void BindCompaction(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_COMPACTION_H_
