// What a group says of itself and of its requests, as Python objects. Needs the GIL.
#ifndef TFCTR_CORE_RUNTIME_PY_SERVING_REPORT_H_
#define TFCTR_CORE_RUNTIME_PY_SERVING_REPORT_H_

#include "pybind11/pybind11.h"
#include "tfctr/core/runtime/serving_group.h"

namespace tfctr {

// {"parse", "pack", ... "total"}: nanoseconds.
pybind11::dict TimingDict(const Timing& timing);

// {"executors": [{"runs", "requests", "rows", "busy_ns", "failures", "running"}], "waiting", "closed"}.
pybind11::dict DescribeGroup(const ServingGroup& group);

// {"histograms": {stage: {"buckets", "counts", "sum"}} in seconds, "requests": {code: n}, "batch_rows" and
// "batch_requests": histograms, "tables": {name: {"lookups", "default_rows"}}, "executors" and "waiting" as above}.
pybind11::dict GroupMetricsDict(const ServingGroup& group);

// Options of a Group as the dispatcher wants them. Raises ValueError.
GroupOptions ReadGroupOptions(const pybind11::dict& given);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_SERVING_REPORT_H_
