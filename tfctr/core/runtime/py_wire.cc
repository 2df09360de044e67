#include "tfctr/core/runtime/py_wire.h"

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pybind11/stl.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/predictor.h"
#include "tfctr/core/runtime/wire_input.h"
#include "tfctr/core/wire/infer_request.h"
#include "tfctr/core/wire/predict_request.h"

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

}  // namespace

void BindWire(py::module_& module) {
  module.def("peek_tfs", &PeekTfs, py::arg("body"),
             "PredictRequest bytes -> (model, version or None, label or None, signature, output names asked for). "
             "Raises tfctr.errors.InputError.");
  module.def("peek_kserve", &PeekKServe, py::arg("body"),
             "ModelInferRequest bytes -> (model, version, id, parameters). Raises tfctr.errors.InputError.");
  module.def("pack_body", &PackBody, py::arg("packer"), py::arg("protocol"), py::arg("body"),
             "Request message of 'tfs' or 'kserve' -> PackedRequest, by a Packer. Raises tfctr.errors.InputError.");
}

}  // namespace tfctr
