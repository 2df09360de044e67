#include "tfctr/core/wire/infer_request.h"

#include "tfctr/core/wire/predict_request.h"
#include "tfctr/core/wire/protobuf_reader.h"
#include "tfctr/core/wire/text.h"

namespace tfctr {

namespace {

constexpr char kNotOne[] = "the request is no ModelInferRequest message: ";

bool Malformed(std::string* error) {
  *error = std::string(kNotOne) + "its bytes are malformed, or cut off";
  return false;
}

bool TakeText(std::string_view text, const char* what, std::string_view* out, std::string* error) {
  *out = text;
  if (IsUtf8(text)) return true;
  *error = std::string(kNotOne) + what + " " + ShownText(text) + " is no UTF-8";
  return false;
}

bool ParseParameter(std::string_view message, ParameterView* parameter, std::string* error) {
  using Kind = ParameterView::Kind;
  ProtobufReader reader(message);
  while (reader.Next()) {
    const auto is = [&](uint32_t field, WireKind kind) { return reader.Is(field, kind); };
    const Kind kind = is(1, WireKind::kVarint)    ? Kind::kBool
                      : is(2, WireKind::kVarint)  ? Kind::kInt64
                      : is(3, WireKind::kBytes)   ? Kind::kString
                      : is(4, WireKind::kFixed64) ? Kind::kDouble
                      : is(5, WireKind::kVarint)  ? Kind::kUint64
                                                  : Kind::kNone;
    if (kind == Kind::kNone) continue;
    parameter->kind = kind;
    parameter->number = kind == Kind::kBool ? (reader.number() != 0 ? 1 : 0) : reader.number();
    if (kind == Kind::kString && !TakeText(reader.bytes(), "the parameter", &parameter->text, error)) return false;
  }
  return !reader.failed() || Malformed(error);
}

// One entry of a map<string, InferParameter>.
bool AddParameter(std::string_view message, std::vector<ParameterView>* parameters, std::string* error) {
  ParameterView parameter;
  ProtobufReader reader(message);
  while (reader.Next()) {
    if (reader.Is(1, WireKind::kBytes)) {
      if (!TakeText(reader.bytes(), "the parameter name", &parameter.name, error)) return false;
    } else if (reader.Is(2, WireKind::kBytes)) {
      if (!ParseParameter(reader.bytes(), &parameter, error)) return false;
    }
  }
  if (reader.failed()) return Malformed(error);
  parameters->push_back(parameter);
  return true;
}

bool IsSharedMemory(const ParameterView& parameter) { return parameter.name.substr(0, 13) == "shared_memory"; }

bool AddInput(std::string_view message, InferRequestView* request, std::string* error) {
  InferInputView input;
  std::vector<ParameterView> parameters;
  input.message = message;
  ProtobufReader reader(message);
  while (reader.Next()) {
    if (reader.Is(1, WireKind::kBytes) && !TakeText(reader.bytes(), "the input name", &input.name, error)) return false;
    if (reader.Is(4, WireKind::kBytes) && !AddParameter(reader.bytes(), &parameters, error)) return false;
  }
  if (reader.failed()) return Malformed(error);
  for (const ParameterView& parameter : parameters) {
    if (IsSharedMemory(parameter)) request->shared_memory = static_cast<int>(request->inputs.size());
  }
  request->inputs.push_back(input);
  return true;
}

bool AddOutput(std::string_view message, InferRequestView* request, std::string* error) {
  InferOutputView output;
  ProtobufReader reader(message);
  while (reader.Next()) {
    if (reader.Is(1, WireKind::kBytes)) {
      if (!TakeText(reader.bytes(), "the output name", &output.name, error)) return false;
    } else if (reader.Is(2, WireKind::kBytes)) {
      if (!AddParameter(reader.bytes(), &output.parameters, error)) return false;
    }
  }
  if (reader.failed()) return Malformed(error);
  request->outputs.push_back(std::move(output));
  return true;
}

bool AddField(const ProtobufReader& reader, bool with_inputs, InferRequestView* request, std::string* error) {
  switch (reader.field()) {
    case 1:
      return TakeText(reader.bytes(), "the model name", &request->model, error);
    case 2:
      return TakeText(reader.bytes(), "the model version", &request->version, error);
    case 3:
      return TakeText(reader.bytes(), "the id", &request->id, error);
    case 4:
      return AddParameter(reader.bytes(), &request->parameters, error);
    case 5:
      return !with_inputs || AddInput(reader.bytes(), request, error);
    case 6:
      return !with_inputs || AddOutput(reader.bytes(), request, error);
    case 7:
      if (with_inputs) request->raw.push_back(reader.bytes());
      return true;
    default:
      return true;
  }
}

// Appends a packed list of dimensions.
bool AddDims(std::string_view packed, WireTensor* tensor, std::string* got) {
  const char* at = packed.data();
  const char* const end = at + packed.size();
  while (at != end) {
    uint64_t size;
    if (!ProtobufReader::ReadVarint(&at, end, &size)) {
      *got = "a shape that is malformed or cut off";
      return false;
    }
    if (!AddDim(static_cast<int64_t>(size), tensor, got)) return false;
  }
  return true;
}

// Shared memory is a matter of one machine, and is not offered.
bool RefuseSharedMemory(std::string_view message, std::string* got) {
  std::vector<ParameterView> parameters;
  if (!AddParameter(message, &parameters, got)) return false;
  if (!IsSharedMemory(parameters[0])) return true;
  *got = "a region of shared memory, which is not offered here";
  return false;
}

}  // namespace

bool ParseInferRequest(std::string_view body, bool with_inputs, InferRequestView* request, std::string* error) {
  ProtobufReader reader(body);
  while (reader.Next()) {
    if (reader.kind() == WireKind::kBytes && !AddField(reader, with_inputs, request, error)) return false;
  }
  if (reader.failed()) return Malformed(error);
  const bool comparable = request->shared_memory < 0 && !request->raw.empty();
  if (comparable && request->raw.size() != request->inputs.size()) {
    *error = "the request has " + std::to_string(request->inputs.size()) + " inputs and " +
             std::to_string(request->raw.size()) + " raw_input_contents, expected one for each input, or none";
    return false;
  }
  return true;
}

bool ParseInferInput(InferRequestView* request, size_t number, WireTensor* tensor, std::string* got) {
  tensor->rank = 0;
  tensor->type = nullptr;
  std::string_view datatype, contents;
  int pieces = 0;
  ProtobufReader reader(request->inputs[number].message);
  while (reader.Next()) {
    switch (reader.field()) {
      case 2:
        if (reader.kind() == WireKind::kBytes) datatype = reader.bytes();
        break;
      case 3:
        if (reader.kind() == WireKind::kVarint) {
          if (!AddDim(static_cast<int64_t>(reader.number()), tensor, got)) return false;
        } else if (reader.kind() == WireKind::kBytes) {
          if (!AddDims(reader.bytes(), tensor, got)) return false;
        }
        break;
      case 4:
        if (reader.kind() == WireKind::kBytes && !RefuseSharedMemory(reader.bytes(), got)) return false;
        break;
      case 5:
        if (reader.kind() != WireKind::kBytes) break;
        contents = reader.bytes();
        ++pieces;
        break;
      default:
        break;
    }
  }
  if (reader.failed()) {
    *got = "bytes that are malformed or cut off";
    return false;
  }
  if (pieces > 1) contents = JoinPieces(request->inputs[number].message, 5, &request->memory);
  const bool has_raw = !request->raw.empty();
  if (has_raw && number >= request->raw.size()) {
    *got = "no raw_input_contents";
    return false;
  }
  if (has_raw && !contents.empty()) {
    *got = "values in both contents and raw_input_contents";
    return false;
  }
  return SetInferTensor(datatype, contents, has_raw, has_raw ? request->raw[number] : std::string_view(), tensor, got);
}

}  // namespace tfctr
