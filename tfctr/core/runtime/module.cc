// The Python module tfctr.core._native.
#include <pybind11/pybind11.h>

#include "tfctr/core/runtime/py_batch.h"
#include "tfctr/core/runtime/py_compaction.h"
#include "tfctr/core/runtime/py_engines.h"
#include "tfctr/core/runtime/py_json.h"
#include "tfctr/core/runtime/py_lookup.h"
#include "tfctr/core/runtime/py_metrics.h"
#include "tfctr/core/runtime/py_overlays.h"
#include "tfctr/core/runtime/py_profiler.h"
#include "tfctr/core/runtime/py_runtime.h"
#include "tfctr/core/runtime/py_serving.h"
#include "tfctr/core/runtime/py_storage.h"
#include "tfctr/core/runtime/py_wire.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "Native runtime of tfctr: storage, packing, execution.";
  tfctr::BindStorage(module);
  tfctr::BindCompaction(module);
  tfctr::BindOverlays(module);
  tfctr::BindRuntime(module);
  tfctr::BindServing(module);
  tfctr::BindBatch(module);
  tfctr::BindLookup(module);
  tfctr::BindMetrics(module);
  tfctr::BindJson(module);
  tfctr::BindEngines(module);
  tfctr::BindWire(module);
  tfctr::BindProfiler(module);
}
