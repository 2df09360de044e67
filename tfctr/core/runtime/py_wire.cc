#include "tfctr/core/runtime/py_wire.h"

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pybind11/numpy.h"
#include "pybind11/stl.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/runtime/json_columns.h"
#include "tfctr/core/runtime/json_input.h"
#include "tfctr/core/runtime/json_request.h"
#include "tfctr/core/runtime/json_write.h"
#include "tfctr/core/runtime/numbers.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/predictor.h"
#include "tfctr/core/runtime/wire_input.h"
#include "tfctr/core/runtime/wire_reply.h"
#include "tfctr/core/wire/infer_request.h"
#include "tfctr/core/wire/predict_request.h"
#include "tfctr/core/wire/value_hash.h"
#include "tfctr/core/wire/wire_tensor.h"

namespace tfctr {

namespace py = pybind11;

namespace {

std::string_view View(const py::bytes& body) {
  return std::string_view(PyBytes_AS_STRING(body.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(body.ptr())));
}

py::str Text(std::string_view text) { return py::str(text.data(), text.size()); }

py::tuple PeekTfs(const py::bytes& body) {
  PredictRequestView view;
  std::string error;
  if (!ParsePredictRequest(View(body), /*with_inputs=*/false, &view, &error)) RaiseError("InputError", error);
  py::list filter;
  for (const std::string_view name : view.output_filter) filter.append(Text(name));
  const py::object version = view.spec.version.has_value() ? py::object(py::int_(*view.spec.version)) : py::none();
  const py::object label = view.spec.label.has_value() ? py::object(Text(*view.spec.label)) : py::none();
  return py::make_tuple(Text(view.spec.name), version, label, Text(view.spec.signature), filter);
}

py::object ParameterValue(const ParameterView& parameter) {
  switch (parameter.kind) {
    case ParameterView::Kind::kBool:
      return py::bool_(parameter.number != 0);
    case ParameterView::Kind::kInt64:
      return py::int_(static_cast<int64_t>(parameter.number));
    case ParameterView::Kind::kUint64:
      return py::int_(parameter.number);
    case ParameterView::Kind::kString:
      return Text(parameter.text);
    case ParameterView::Kind::kDouble: {
      double number;
      std::memcpy(&number, &parameter.number, sizeof(number));
      return py::float_(number);
    }
    default:
      return py::none();
  }
}

py::tuple PeekKServe(const py::bytes& body) {
  InferRequestView view;
  std::string error;
  if (!ParseInferRequest(View(body), /*with_inputs=*/false, &view, &error)) RaiseError("InputError", error);
  py::dict parameters;
  for (const ParameterView& parameter : view.parameters) parameters[Text(parameter.name)] = ParameterValue(parameter);
  return py::make_tuple(Text(view.model), Text(view.version), Text(view.id), parameters);
}

Protocol ProtocolOf(const std::string& name) {
  const absl::StatusOr<Protocol> protocol = ProtocolFromName(name);
  if (!protocol.ok()) throw py::value_error(std::string(protocol.status().message()));
  return *protocol;
}

// What a server does with a request's bytes, up to the packed form.
PackedRequest PackBody(const SignaturePlan& plan, const std::string& protocol_name, const py::bytes& body) {
  const Protocol protocol = ProtocolOf(protocol_name);
  absl::StatusOr<PackedRequest> packed;
  {
    const py::gil_scoped_release released;
    WireRequest request;
    const absl::Status status = ReadWire(protocol, View(body), plan, &request);
    packed = status.ok() ? PackWire(plan, &request) : absl::StatusOr<PackedRequest>(status);
  }
  if (!packed.ok()) RaiseError("InputError", std::string(packed.status().message()));
  return *std::move(packed);
}

// The same for a request in JSON; None where it has to go over Python's objects.
py::object PackJson(const SignaturePlan& plan, JsonRequest* json) {
  WireRequest request;
  if (!ReadJson(plan, json, &request)) return py::none();
  absl::StatusOr<PackedRequest> packed = PackWire(plan, &request);
  if (!packed.ok()) return py::none();
  return py::cast(*std::move(packed));
}

// Runs `f`, whose BadRequest is tfctr.errors.InputError.
template <typename F>
auto OrInputError(F f) {
  try {
    return f();
  } catch (const BadRequest& error) {
    RaiseError("InputError", error.what());
  }
}

py::object HashOfTensor(const WireTensor& tensor) {
  BlockMemory memory;
  std::string got;
  int64_t filled = 0;
  if (tensor.elements == 0) return py::none();
  if (tensor.type->bytes == 0) {
    const std::string_view* views = nullptr;
    if (!ReadStrings(tensor, &filled, &memory, &views, &got)) return py::none();
    return py::int_(HashText(views[0]));
  }
  const char* data = nullptr;
  if (!ReadNumbers(tensor, &filled, &memory, &data, &got)) return py::none();
  return WithNumberType(
      static_cast<tensorflow::DataType>(tensor.type->type),
      [&](auto number) -> py::object {
        using T = decltype(number);
        std::memcpy(static_cast<void*>(&number), data, sizeof(T));
        if constexpr (kIsFloat<T>) {
          return py::int_(HashReal(static_cast<double>(number)));
        } else if constexpr (std::is_same_v<T, uint64_t>) {
          return py::int_(HashUnsigned(number));
        } else {
          return py::int_(HashSigned(static_cast<int64_t>(number)));
        }
      },
      py::object(py::none()));
}

py::object FieldHash(const std::string& protocol_name, const py::object& source, const std::string& field) {
  if (py::isinstance<py::dict>(source)) {
    const py::str name(field);
    const py::dict inputs = source.cast<py::dict>();
    if (!inputs.contains(name)) return py::none();
    return OrInputError([&] { return HashFirstValue(inputs[name]); });
  }
  const std::string_view body = View(source.cast<py::bytes>());
  WireTensor tensor;
  std::string error;
  if (ProtocolOf(protocol_name) == Protocol::kTfServing) {
    PredictRequestView view;
    if (!ParsePredictRequest(body, /*with_inputs=*/true, &view, &error)) return py::none();
    for (size_t i = view.inputs.size(); i > 0; --i) {
      if (view.inputs[i - 1].name != field) continue;
      if (!ParseTensorProto(view.inputs[i - 1].value, &tensor, &error)) return py::none();
      return HashOfTensor(tensor);
    }
    return py::none();
  }
  InferRequestView view;
  if (!ParseInferRequest(body, /*with_inputs=*/true, &view, &error)) return py::none();
  for (size_t i = 0; i < view.inputs.size(); ++i) {
    if (view.inputs[i].name != field) continue;
    if (!ParseInferInput(&view, i, &tensor, &error)) return py::none();
    return HashOfTensor(tensor);
  }
  return py::none();
}

// An array as a tensor; bytes and str objects as strings.
tensorflow::Tensor TensorOf(const py::object& value) {
  const py::array array = py::module_::import("numpy").attr("ascontiguousarray")(value).cast<py::array>();
  tensorflow::TensorShape shape;
  const py::tuple dims = py::module_::import("numpy").attr("shape")(value).cast<py::tuple>();
  for (const py::handle dim : dims) shape.AddDim(dim.cast<int64_t>());
  if (array.dtype().kind() == 'O') {
    tensorflow::Tensor tensor(tensorflow::DT_STRING, shape);
    PyObject* const* objects = static_cast<PyObject* const*>(array.data());
    for (int64_t i = 0; i < array.size(); ++i) {
      static_cast<tensorflow::tstring*>(tensor.data())[i] = py::handle(objects[i]).cast<std::string>();
    }
    return tensor;
  }
  const std::string name = array.dtype().attr("name").cast<std::string>();
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  if (name == "complex64") dtype = tensorflow::DT_COMPLEX64;
  if (name == "complex128") dtype = tensorflow::DT_COMPLEX128;
  for (const ElementTypeInfo& info : kElementTypes) {
    if (info.name == name) dtype = static_cast<tensorflow::DataType>(info.type);
  }
  if (dtype == tensorflow::DT_INVALID) throw py::value_error("an output of type " + name);
  tensorflow::Tensor tensor(dtype, shape);
  if (array.size() > 0) std::memcpy(tensor.data(), array.data(), static_cast<size_t>(array.nbytes()));
  return tensor;
}

py::bytes WriteReplyOf(const std::string& protocol, const py::dict& outputs, const std::string& model, int64_t version,
                       const std::string& signature, const std::string& id, const std::vector<std::string>& filter,
                       int64_t first_row, int64_t rows) {
  std::vector<std::string> names;
  std::vector<tensorflow::Tensor> tensors;
  for (const auto& [name, value] : outputs) {
    names.push_back(name.cast<std::string>());
    tensors.push_back(TensorOf(py::reinterpret_borrow<py::object>(value)));
  }
  std::vector<ReplyOutput> replies;
  for (size_t i = 0; i < names.size(); ++i) replies.push_back({names[i], &tensors[i], first_row, rows});
  const absl::StatusOr<std::string> reply =
      WriteReply(ProtocolOf(protocol), ReplySpec{model, version, signature, id, filter}, replies);
  if (!reply.ok()) {
    RaiseError(absl::IsInvalidArgument(reply.status()) ? "InputError" : "InternalError",
               std::string(reply.status().message()));
  }
  return py::bytes(*reply);
}

}  // namespace

void BindWire(py::module_& module) {
  module.def("peek_tfs", &PeekTfs, py::arg("body"),
             "PredictRequest bytes -> (model, version or None, label or None, signature, output names asked for). "
             "Raises tfctr.errors.InputError.");
  module.def("peek_kserve", &PeekKServe, py::arg("body"),
             "ModelInferRequest bytes -> (model, version, id, parameters). Raises tfctr.errors.InputError.");
  module.def("pack_body", &PackBody, py::arg("packer"), py::arg("protocol"), py::arg("body"),
             "Request message of 'tfs' or 'kserve' -> PackedRequest, by a Packer. Raises tfctr.errors.InputError.");
  module.def("pack_json", &PackJson, py::arg("packer"), py::arg("request"),
             "JsonRequest -> PackedRequest, by a Packer; None where it has to go over Python's objects.");
  module.def("write_reply", &WriteReplyOf, py::arg("protocol"), py::arg("outputs"), py::arg("model"),
             py::arg("version"), py::arg("signature") = "", py::arg("id") = "",
             py::arg("output_filter") = std::vector<std::string>(), py::arg("first_row") = 0, py::arg("rows") = -1,
             "dict of arrays -> PredictResponse ('tfs') or ModelInferResponse ('kserve') bytes, of all rows or some.");
  module.def("field_hash", &FieldHash, py::arg("protocol"), py::arg("source"), py::arg("field"),
             "Stable 64-bit hash of the first value of an input, None where there is none. source: request bytes of "
             "'tfs' or 'kserve', or a dict of inputs (any protocol); equal values have equal hashes in all of them.");
  module.def(
      "instances_to_columns",
      [](const py::list& instances) { return OrInputError([&] { return InstancesToColumns(instances); }); },
      py::arg("instances"),
      "Parsed JSON rows -> {input: list of values}; {'': rows} for rows that are bare values; {'b64'} as bytes. Raises "
      "tfctr.errors.InputError.");
  module.def(
      "without_base64",
      [](const py::object& value, const std::string& where) {
        return OrInputError([&] { return WithoutBase64(value, where); });
      },
      py::arg("value"), py::arg("where"),
      "Parsed JSON with each {'b64': text} in it as bytes. Raises tfctr.errors.InputError, naming `where`.");
  module.def(
      "kserve_inputs",
      [](const py::list& inputs, const py::bytes& tail) {
        return OrInputError([&] { return KServeInputs(inputs, tail); });
      },
      py::arg("inputs"), py::arg("tail") = py::bytes(),
      "KServe's parsed inputs and the bytes behind the JSON -> {input: array}. Raises tfctr.errors.InputError.");
  module.def(
      "write_json",
      [](const py::dict& outputs, const std::string& form) {
        if (form != "rows" && form != "columns") throw py::value_error("form '" + form + "', expected rows or columns");
        return py::bytes(OrInputError([&] { return WriteJson(outputs, form == "rows"); }));
      },
      py::arg("outputs"), py::arg("form"),
      "The value of TF Serving's \"predictions\" (form 'rows') or \"outputs\" ('columns'). Raises "
      "tfctr.errors.InputError when the outputs have different numbers of rows.");
  module.def(
      "write_kserve_json",
      [](const py::dict& outputs, const std::vector<std::string>& binary, bool all_binary) {
        const auto written = OrInputError([&] { return WriteKServeJson(outputs, binary, all_binary); });
        return py::make_tuple(py::bytes(written.first), py::bytes(written.second));
      },
      py::arg("outputs"), py::arg("binary") = std::vector<std::string>(), py::arg("all_binary") = false,
      "The value of KServe's \"outputs\" and the bytes that follow the JSON: outputs named in `binary`, or all, are "
      "written there. Raises tfctr.errors.InputError.");
}

}  // namespace tfctr
