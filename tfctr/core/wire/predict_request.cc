#include "tfctr/core/wire/predict_request.h"

#include <cstring>

#include "tfctr/core/wire/protobuf_reader.h"
#include "tfctr/core/wire/text.h"

namespace tfctr {

namespace {

constexpr char kMalformed[] = "the request is no PredictRequest message: its bytes are malformed, or cut off";

bool Malformed(std::string* error) {
  *error = kMalformed;
  return false;
}

bool CheckText(std::string_view text, const char* what, std::string* error) {
  if (IsUtf8(text)) return true;
  *error = std::string("the request is no PredictRequest message: ") + what + " " + ShownText(text) + " is no UTF-8";
  return false;
}

bool ParseModelSpec(std::string_view message, ModelSpecView* spec, std::string* error) {
  ProtobufReader reader(message);
  while (reader.Next()) {
    if (reader.kind() != WireKind::kBytes) continue;
    switch (reader.field()) {
      case 1:
        spec->name = reader.bytes();
        if (!CheckText(spec->name, "the model name", error)) return false;
        break;
      case 2: {  // google.protobuf.Int64Value
        if (!spec->version.has_value()) spec->version = 0;
        spec->label.reset();
        ProtobufReader value(reader.bytes());
        while (value.Next()) {
          if (value.Is(1, WireKind::kVarint)) spec->version = static_cast<int64_t>(value.number());
        }
        if (value.failed()) return Malformed(error);
        break;
      }
      case 3:
        spec->signature = reader.bytes();
        if (!CheckText(spec->signature, "the signature name", error)) return false;
        break;
      case 4:
        spec->label = reader.bytes();
        spec->version.reset();
        if (!CheckText(*spec->label, "the version label", error)) return false;
        break;
      default:
        break;
    }
  }
  return !reader.failed() || Malformed(error);
}

bool ParseInput(std::string_view message, PredictRequestView* request, std::string* error) {
  NamedBytes input;
  int pieces = 0;
  ProtobufReader reader(message);
  while (reader.Next()) {
    if (reader.Is(1, WireKind::kBytes)) {
      input.name = reader.bytes();
    } else if (reader.Is(2, WireKind::kBytes)) {
      input.value = reader.bytes();
      ++pieces;
    }
  }
  if (reader.failed()) return Malformed(error);
  if (pieces > 1) input.value = JoinPieces(message, 2, &request->memory);
  if (!CheckText(input.name, "the input name", error)) return false;
  request->inputs.push_back(input);
  return true;
}

}  // namespace

std::string_view JoinPieces(std::string_view message, uint32_t field, BlockMemory* memory) {
  char* const joined = memory->Take(message.size());
  char* at = joined;
  ProtobufReader reader(message);
  while (reader.Next()) {
    if (!reader.Is(field, WireKind::kBytes) || reader.bytes().empty()) continue;
    std::memcpy(at, reader.bytes().data(), reader.bytes().size());
    at += reader.bytes().size();
  }
  return std::string_view(joined, static_cast<size_t>(at - joined));
}

bool ParsePredictRequest(std::string_view body, bool with_inputs, PredictRequestView* request, std::string* error) {
  ProtobufReader reader(body);
  while (reader.Next()) {
    if (reader.kind() != WireKind::kBytes) continue;
    switch (reader.field()) {
      case 1:
        if (!ParseModelSpec(reader.bytes(), &request->spec, error)) return false;
        break;
      case 2:
        if (with_inputs && !ParseInput(reader.bytes(), request, error)) return false;
        break;
      case 3:
        if (!CheckText(reader.bytes(), "the output name", error)) return false;
        request->output_filter.push_back(reader.bytes());
        break;
      default:
        break;
    }
  }
  return !reader.failed() || Malformed(error);
}

}  // namespace tfctr
