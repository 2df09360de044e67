// Traced runs of a group, for Python. Needs the GIL, and lets go of it while it works.
#ifndef TFCTR_CORE_RUNTIME_PY_TRACES_H_
#define TFCTR_CORE_RUNTIME_PY_TRACES_H_

#include <cstdint>
#include <set>

#include "pybind11/pybind11.h"
#include "pybind11/stl.h"
#include "tfctr/core/runtime/serving_group.h"

namespace tfctr {

// The oldest trace as a dict, or None; `known`: forms whose graph need not be given again.
pybind11::object TakeTrace(ServingGroup& group, const std::set<int64_t>& known);

// {"every", "traced", "dropped", "failed", "waiting"}.
pybind11::dict TraceCountsDict(ServingGroup& group);

// Adds the methods trace_* to a class that holds a `group`.
template <typename Class>
void BindTraces(Class* to) {
  namespace py = pybind11;
  using Core = typename Class::type;
  to->def(
      "trace_start",
      [](Core& self, int64_t every, int64_t room, bool replay) {
        if (every < 1 || room < 1) throw py::value_error("every and room: expected 1 or more");
        const py::gil_scoped_release released;
        self.group->StartTraces(every, room, replay);
      },
      py::arg("every"), py::arg("room") = 16, py::arg("replay") = true,
      "Traces the run of every N-th request; keeps `room` of them until they are taken, and traces none while there is "
      "no room. replay: a request may be run once more, to learn the graph.");
  to->def(
      "trace_stop",
      [](Core& self) {
        const py::gil_scoped_release released;
        self.group->StopTraces();
      },
      "Traces no more; gives back the memory that it took, and what was not taken.");
  to->def(
      "trace_prepare",
      [](Core& self) {
        const py::gil_scoped_release released;
        return self.group->PrepareTraces();
      },
      "Makes what traced runs need, for the kinds of requests that were due. list of what could not be made.");
  to->def(
      "trace_take", [](Core& self, const std::set<int64_t>& known) { return TakeTrace(*self.group, known); },
      py::arg("known") = std::set<int64_t>(),
      "The oldest trace: {'signature', 'split', 'executor', 'thread', 'start_ns' (Unix), 'rows', 'batch_ns', 'run_ns', "
      "'lookup_ns', 'dense_ns', 'requests': [{'id', 'rows', 'parse_ns', 'pack_ns', 'queue_ns'}], 'metadata': bytes of "
      "RunMetadata, 'form': number of the graph, 'graphs': bytes of RunMetadata with it, None where 'form' is in "
      "`known`}. None: there is none.");
  to->def(
      "trace_counts", [](Core& self) { return TraceCountsDict(*self.group); },
      "{'every' (0: off), 'traced', 'dropped' (no room), 'failed' (the run, or its traced form), 'waiting'}.");
}

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PY_TRACES_H_
