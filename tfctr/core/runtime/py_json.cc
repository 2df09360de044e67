#include "tfctr/core/runtime/py_json.h"

#include <string>
#include <string_view>

#include "tfctr/core/wire/json_text.h"

namespace tfctr {

namespace py = pybind11;

void BindJson(py::module_& module) {
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
