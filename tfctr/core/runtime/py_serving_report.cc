#include "tfctr/core/runtime/py_serving_report.h"

#include <string>
#include <vector>

#include "pybind11/stl.h"

namespace tfctr {

namespace py = pybind11;

namespace {

py::list Executors(const ServingGroup& group) {
  py::list executors;
  for (const ExecutorCounts& counts : group.dispatcher().Counts()) {
    py::dict one;
    one["runs"] = counts.runs;
    one["requests"] = counts.requests;
    one["rows"] = counts.rows;
    one["busy_ns"] = counts.busy_ns;
    one["failures"] = counts.failures;
    one["running"] = counts.running;
    executors.append(one);
  }
  return executors;
}

py::dict HistogramDict(const HistogramCounts& counts) {
  py::dict result;
  result["buckets"] = counts.buckets;
  result["counts"] = counts.counts;
  result["sum"] = counts.sum;
  return result;
}

}  // namespace

py::dict TimingDict(const Timing& timing) {
  py::dict result;
  result["parse"] = timing.parse;
  result["pack"] = timing.pack;
  result["queue"] = timing.queue;
  result["batch"] = timing.batch;
  result["run"] = timing.run;
  result["lookup"] = timing.lookup;
  result["dense"] = timing.dense;
  result["split"] = timing.split;
  result["reply"] = timing.reply;
  result["total"] = timing.total;
  return result;
}

py::dict DescribeGroup(const ServingGroup& group) {
  py::dict result;
  result["executors"] = Executors(group);
  result["waiting"] = group.dispatcher().waiting();
  result["closed"] = group.dispatcher().closed();
  return result;
}

py::dict GroupMetricsDict(const ServingGroup& group) {
  const GroupMetrics::Reading reading = group.metrics().Read();
  py::dict histograms, requests, tables, result;
  for (const auto& [name, counts] : reading.times) histograms[py::str(name)] = HistogramDict(counts);
  for (const auto& [code, count] : reading.requests) requests[py::str(code)] = count;
  for (const auto& [name, counts] : reading.tables) {
    py::dict table;
    table["lookups"] = counts.lookups;
    table["default_rows"] = counts.default_rows;
    tables[py::str(name)] = table;
  }
  result["histograms"] = histograms;
  result["requests"] = requests;
  result["batch_rows"] = HistogramDict(reading.batch_rows);
  result["batch_requests"] = HistogramDict(reading.batch_requests);
  result["tables"] = tables;
  result["executors"] = Executors(group);
  result["waiting"] = group.dispatcher().waiting();
  return result;
}

GroupOptions ReadGroupOptions(const py::dict& given) {
  GroupOptions options;
  for (const auto& [key, value] : given) {
    const std::string name = key.cast<std::string>();
    if (name == "routing") {
      const std::string routing = value.cast<std::string>();
      if (routing != "least_loaded" && routing != "round_robin") {
        throw py::value_error("routing '" + routing + "' is neither least_loaded nor round_robin");
      }
      options.dispatch.policy.routing = routing == "round_robin" ? Routing::kRoundRobin : Routing::kLeastLoaded;
    } else if (name == "cpu_sets") {
      options.dispatch.cpu_sets = value.cast<std::vector<std::vector<int>>>();
    } else if (name == "queue_limit") {
      options.dispatch.queue_limit = value.cast<int64_t>();
      if (options.dispatch.queue_limit < 0) throw py::value_error("queue_limit is negative");
    } else if (name == "max_request_rows") {
      options.max_request_rows = value.cast<int64_t>();
      if (options.max_request_rows < 0) throw py::value_error("max_request_rows is negative");
    } else if (name == "runner_nice") {
      options.dispatch.runner_nice = value.cast<int>();
    } else if (name == "metrics") {
      options.metrics = value.cast<bool>();
    } else if (name == "batching") {
      if (value.is_none()) continue;
      options.batching = true;
      for (const auto& [batch_key, batch_value] : value.cast<py::dict>()) {
        const std::string batch_name = batch_key.cast<std::string>();
        const int64_t number = batch_value.cast<int64_t>();
        if (batch_name == "max_batch_rows") {
          if (number < 1) throw py::value_error("batching: max_batch_rows is below 1");
          options.dispatch.policy.max_batch_rows = number;
        } else if (batch_name == "max_delay_us") {
          if (number < 0) throw py::value_error("batching: max_delay_us is negative");
          options.dispatch.policy.max_delay_ns = number * 1000;
        } else {
          throw py::value_error("batching: '" + batch_name + "' is neither max_batch_rows nor max_delay_us");
        }
      }
      if (options.dispatch.policy.max_batch_rows < 1) throw py::value_error("batching: max_batch_rows is missing");
    } else {
      throw py::value_error("'" + name + "' is none of routing, cpu_sets, queue_limit, batching, runner_nice, metrics");
    }
  }
  return options;
}

}  // namespace tfctr
