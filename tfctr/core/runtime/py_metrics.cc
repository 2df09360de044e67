#include "tfctr/core/runtime/py_metrics.h"

#include <memory>

#include "pybind11/stl.h"
#include "tfctr/core/profiling/step_record.h"

namespace tfctr {

namespace py = pybind11;

namespace {

py::dict HistogramDict(const HistogramCounts& counts) {
  py::dict result;
  result["buckets"] = counts.buckets;
  result["counts"] = counts.counts;
  result["sum"] = counts.sum;
  return result;
}

// A record that Python holds; set for the calling thread while a `with` block runs.
struct RecordOfBlock {
  StepRecord record;
  std::unique_ptr<ScopedStep> scope;
};

py::dict RecordDict(const StepRecord& record) {
  py::dict tables, result;
  for (size_t i = 0; i < record.tables().size(); ++i) {
    const TableCounts& counts = record.tables()[i];
    if (counts.lookups == 0) continue;
    py::dict one;
    one["lookups"] = counts.lookups;
    one["default_rows"] = counts.default_rows;
    tables[py::str(StepRecord::TableName(i))] = one;
  }
  result["lookup_ns"] = record.lookup_ns;
  result["dense_ns"] = record.dense_ns;
  result["pack_ns"] = record.pack_ns;
  result["tables"] = tables;
  return result;
}

}  // namespace

py::dict MetricsDict(const GroupMetrics::Reading& reading) {
  py::dict histograms, tables, result;
  for (const auto& [stage, counts] : reading.times) histograms[py::str(stage)] = HistogramDict(counts);
  for (const auto& [name, counts] : reading.tables) {
    py::dict one;
    one["lookups"] = counts.lookups;
    one["default_rows"] = counts.default_rows;
    tables[py::str(name)] = one;
  }
  result["histograms"] = histograms;
  result["requests"] = py::cast(reading.requests);
  result["batch_rows"] = HistogramDict(reading.batch_rows);
  result["batch_requests"] = HistogramDict(reading.batch_requests);
  result["tables"] = tables;
  return result;
}

void BindMetrics(py::module_& module) {
  py::class_<RecordOfBlock>(module, "StepRecord",
                            "What ops add up while a `with` block of this thread runs models on it.")
      .def(py::init<>())
      .def(
          "__enter__",
          [](RecordOfBlock& self) -> RecordOfBlock& {
            self.scope.reset();
            self.record.Clear();
            self.scope = std::make_unique<ScopedStep>(&self.record);
            return self;
          },
          py::return_value_policy::reference_internal)
      .def("__exit__", [](RecordOfBlock& self, const py::args&) { self.scope.reset(); })
      .def(
          "read", [](const RecordOfBlock& self) { return RecordDict(self.record); },
          "{'lookup_ns', 'dense_ns', 'pack_ns', 'tables': {name: {'lookups', 'default_rows'}}}.");
}

}  // namespace tfctr
