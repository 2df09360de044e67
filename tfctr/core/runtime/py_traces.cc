#include "tfctr/core/runtime/py_traces.h"

#include <memory>
#include <string>
#include <utility>

namespace tfctr {

namespace py = pybind11;

namespace {

py::list Requests(const RunTrace& trace) {
  py::list requests;
  for (const TracedRequest& request : trace.requests) {
    py::dict one;
    one["id"] = py::bytes(request.id).attr("decode")("utf-8", "replace");
    one["rows"] = request.rows;
    one["parse_ns"] = request.parse_ns;
    one["pack_ns"] = request.pack_ns;
    one["queue_ns"] = request.queue_ns;
    requests.append(one);
  }
  return requests;
}

}  // namespace

py::object TakeTrace(ServingGroup& group, const std::set<int64_t>& known) {
  std::unique_ptr<RunTrace> trace;
  std::string metadata;
  {
    const py::gil_scoped_release released;
    trace = group.traces().Take();
    if (trace != nullptr) {
      metadata = trace->metadata.SerializeAsString();
      tensorflow::RunMetadata().Swap(&trace->metadata);
    }
  }
  if (trace == nullptr) return py::none();
  py::dict result;
  result["signature"] = trace->signature;
  result["split"] = trace->split;
  result["executor"] = trace->executor;
  result["thread"] = trace->thread;
  result["start_ns"] = trace->start_ns;
  result["rows"] = trace->rows;
  result["batch_ns"] = trace->batch_ns;
  result["run_ns"] = trace->run_ns;
  result["lookup_ns"] = trace->lookup_ns;
  result["dense_ns"] = trace->dense_ns;
  result["requests"] = Requests(*trace);
  result["metadata"] = py::bytes(metadata);
  result["form"] = trace->form->id;
  result["graphs"] = py::none();
  if (known.count(trace->form->id) == 0) result["graphs"] = py::bytes(trace->form->graphs);
  {
    const py::gil_scoped_release released;  // it may be the last to hold its form
    trace.reset();
  }
  return std::move(result);
}

py::dict TraceCountsDict(ServingGroup& group) {
  const TraceCounts counts = group.traces().Counts();
  py::dict result;
  result["every"] = counts.every;
  result["traced"] = counts.traced;
  result["dropped"] = counts.dropped;
  result["failed"] = counts.failed;
  result["waiting"] = counts.waiting;
  return result;
}

}  // namespace tfctr
