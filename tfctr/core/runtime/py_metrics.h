// What a group counted, as Python objects.
#ifndef TFCTR_CORE_RUNTIME_PY_METRICS_H_
#define TFCTR_CORE_RUNTIME_PY_METRICS_H_

#include "pybind11/pybind11.h"
#include "tfctr/core/serving/histogram.h"

namespace tfctr {

// {"histograms": {stage: {"buckets", "counts", "sum"}}, "requests": {code: n}, "batch_rows", "batch_requests": as a
// stage, "tables": {name: {"lookups", "default_rows"}}}. Buckets are upper edges (seconds, rows, requests); counts have
// one entry more, of the open bucket, and are not cumulated. Whoever has executors adds them.
pybind11::dict MetricsDict(const GroupMetrics::Reading& reading);

void BindMetrics(pybind11::module_& module);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_METRICS_H_
