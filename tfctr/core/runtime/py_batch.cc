#include "tfctr/core/runtime/py_batch.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pybind11/stl.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/runtime/request_batch.h"
#include "tfctr/core/runtime/tensor_array.h"

namespace tfctr {

namespace py = pybind11;

namespace {

template <typename T>
T ValueOrRaise(absl::StatusOr<T> result) {
  if (!result.ok()) throw py::value_error(std::string(result.status().message()));
  return *std::move(result);
}

// The plan, and what it takes to show outputs as arrays.
struct Batcher {
  explicit Batcher(const SignaturePlan& plan)
      : outputs(plan.plain.outputs), batch(ValueOrRaise(BatchPlan::Make(plan))) {}

  std::vector<Output> outputs;
  BatchPlan batch;
};

py::dict Describe(const RequestInfo& info) {
  py::dict result;
  result["rows"] = info.rows;
  result["users"] = info.users;
  result["key"] = py::bytes(info.key);
  result["why"] = info.why;
  return result;
}

// An array as a tensor, copied; strings from object arrays of bytes.
tensorflow::Tensor ToTensor(const py::array& array, const py::object& numpy) {
  tensorflow::TensorShape shape;
  for (py::ssize_t d = 0; d < array.ndim(); ++d) shape.AddDim(array.shape(d));
  if (array.dtype().kind() == 'O') {
    tensorflow::Tensor tensor(tensorflow::DT_STRING, shape);
    const py::list items = array.attr("reshape")(-1).attr("tolist")();
    auto* strings = static_cast<tensorflow::tstring*>(tensor.data());
    for (size_t i = 0; i < items.size(); ++i) strings[i] = items[i].cast<std::string>();
    return tensor;
  }
  const auto enum_of = py::module_::import("tensorflow").attr("as_dtype")(numpy).attr("as_datatype_enum");
  tensorflow::Tensor tensor(static_cast<tensorflow::DataType>(enum_of.cast<int>()), shape);
  const py::array whole = py::module_::import("numpy").attr("ascontiguousarray")(array);
  if (whole.nbytes() > 0) std::memcpy(tensor.data(), whole.data(), static_cast<size_t>(whole.nbytes()));
  return tensor;
}

std::vector<tensorflow::Tensor> ToTensors(const Batcher& self, const std::vector<py::array>& arrays) {
  if (arrays.size() != self.outputs.size()) throw py::value_error("one array for each output");
  std::vector<tensorflow::Tensor> tensors;
  for (const py::array& array : arrays) tensors.push_back(ToTensor(array, array.dtype()));
  return tensors;
}

py::list ToArrays(const Batcher& self, std::vector<tensorflow::Tensor> tensors) {
  py::list result;
  for (size_t i = 0; i < tensors.size(); ++i) {
    result.append(TensorToArray(std::move(tensors[i]), self.outputs[i].numpy));
  }
  return result;
}

double TimeConcat(const Batcher& self, const std::vector<const PackedRequest*>& requests, int64_t times) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) ValueOrRaise(self.batch.Concat(requests));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(times);
}

double TimeInspect(const Batcher& self, const PackedRequest& request, int64_t times) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) self.batch.Inspect(request);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return took.count() / static_cast<double>(times);
}

}  // namespace

void BindBatch(py::module_& module) {
  py::class_<Batcher>(module, "Batcher", "Stacks packed requests of one signature, without a model.")
      .def(py::init<const SignaturePlan&>(), py::arg("packer"),
           "Raises ValueError with the reason where requests can't be stacked.")
      .def(
          "inspect",
          [](const Batcher& self, const PackedRequest& request) { return Describe(self.batch.Inspect(request)); },
          py::arg("request"),
          "PackedRequest -> {'rows', 'users', 'key', 'why'}; rows -1: it runs alone, `why` says why.")
      .def(
          "fits",
          [](const Batcher& self, const PackedRequest& a, const PackedRequest& b) { return self.batch.Fits(a, b); },
          py::arg("a"), py::arg("b"), "Whether the two may share a batch.")
      .def(
          "concat",
          [](const Batcher& self, const std::vector<const PackedRequest*>& requests) {
            return ValueOrRaise(self.batch.Concat(requests));
          },
          py::arg("requests"), "[PackedRequest] that fit -> PackedRequest.")
      .def(
          "slice",
          [](const Batcher& self, const PackedRequest& request, int64_t first, int64_t rows) {
            return ValueOrRaise(self.batch.Slice(request, first, rows));
          },
          py::arg("request"), py::arg("first"), py::arg("rows"), "Some rows of a PackedRequest.")
      .def(
          "split_outputs",
          [](const Batcher& self, const std::vector<py::array>& outputs, const std::vector<int64_t>& rows) {
            const std::vector<tensorflow::Tensor> tensors = ToTensors(self, outputs);
            py::list result;
            for (std::vector<tensorflow::Tensor>& own : ValueOrRaise(self.batch.SplitOutputs(tensors, rows))) {
              result.append(ToArrays(self, std::move(own)));
            }
            return result;
          },
          py::arg("outputs"), py::arg("rows"), "Arrays of a batch -> [request][output] arrays.")
      .def(
          "join_outputs",
          [](const Batcher& self, const std::vector<std::vector<py::array>>& pieces) {
            std::vector<std::vector<tensorflow::Tensor>> tensors;
            for (const auto& piece : pieces) tensors.push_back(ToTensors(self, piece));
            return ToArrays(self, ValueOrRaise(self.batch.JoinOutputs(tensors)));
          },
          py::arg("pieces"), "[piece][output] arrays -> arrays of the whole.")
      .def("time_concat", &TimeConcat, py::arg("requests"), py::arg("times"), "Seconds of one concat.")
      .def("time_inspect", &TimeInspect, py::arg("request"), py::arg("times"), "Seconds of one inspect.");
}

}  // namespace tfctr
