#include "tfctr/core/runtime/py_json.h"

#include <memory>
#include <string>
#include <string_view>

#include "tfctr/core/runtime/json_request.h"
#include "tfctr/core/wire/json_predict.h"
#include "tfctr/core/wire/json_text.h"

namespace tfctr {

namespace py = pybind11;

namespace {

std::string_view ViewOf(const py::bytes& body) {
  return std::string_view(PyBytes_AS_STRING(body.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(body.ptr())));
}

// nullptr: None.
std::unique_ptr<JsonRequest> IndexPredict(const py::bytes& body, int64_t max_depth, int64_t max_rows) {
  auto request = std::make_unique<JsonRequest>();
  request->body = body;
  request->max_rows = max_rows;
  const std::string_view text = ViewOf(body);
  const py::gil_scoped_release released;
  return IndexJsonPredict(text, max_depth, &request->predict) ? std::move(request) : nullptr;
}

std::unique_ptr<JsonRequest> IndexInfer(const py::bytes& body, size_t length, int64_t max_depth, int64_t max_rows) {
  auto request = std::make_unique<JsonRequest>();
  request->body = body;
  request->max_rows = max_rows;
  request->infer = true;
  const std::string_view text = ViewOf(body);
  if (length > text.size()) return nullptr;
  const bool indexed = IndexJsonInfer(text.substr(0, length), text.substr(length), max_depth, &request->kserve);
  return indexed ? std::move(request) : nullptr;
}

}  // namespace

void BindJson(py::module_& module) {
  py::class_<JsonRequest>(module, "JsonRequest",
                          "A request in JSON of the ordinary kind, for ServedSignature.predict_json.")
      .def_property_readonly(
          "signature",
          [](const JsonRequest& self) { return py::str(self.predict.signature.data(), self.predict.signature.size()); },
          "TF Serving's signature_name; '' where none is named.")
      .def_property_readonly(
          "rest", [](const JsonRequest& self) { return py::bytes(self.kserve.rest); }, "KServe's JSON without inputs.")
      .def_property_readonly(
          "rows",
          [](const JsonRequest& self) {
            return self.rows < 0 ? py::object(py::none()) : py::object(py::int_(self.rows));
          },
          "Of the row form, once it was read; None in column form.");
  module.def(
      "json_predict", &IndexPredict, py::arg("body"), py::arg("max_depth"), py::arg("max_rows"),
      "TF Serving's REST predict -> JsonRequest; None where it has to go over Python's objects (text with escapes, "
      "base64, 'user', any mistake).");
  module.def(
      "json_infer", &IndexInfer, py::arg("body"), py::arg("length"), py::arg("max_depth"), py::arg("max_rows"),
      "KServe's infer whose JSON has `length` bytes and whose values all lie behind it -> JsonRequest, or None.");
  module.def(
      "json_shape",
      [](std::string_view text) {
        const JsonShape shape = ScanJson(text);
        return py::make_tuple(shape.depth, shape.keys);
      },
      py::arg("text"), "(depth, number of keys) of a JSON text; of any bytes, in one pass without recursion.");
  module.def(
      "json_path",
      [](std::string_view text, size_t position) {
        const std::string path = JsonPath(text, position);
        PyObject* decoded = PyUnicode_DecodeUTF8(path.data(), static_cast<Py_ssize_t>(path.size()), "backslashreplace");
        if (decoded == nullptr) throw py::error_already_set();
        return py::reinterpret_steal<py::str>(decoded);
      },
      py::arg("text"), py::arg("position"), "What byte `position` belongs to: 'instances[3].user_id'; '' at the top.");
}

}  // namespace tfctr
