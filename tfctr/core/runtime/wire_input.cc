#include "tfctr/core/runtime/wire_input.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "tfctr/core/runtime/number_cast.h"
#include "tfctr/core/runtime/request_checks.h"
#include "tfctr/core/wire/infer_request.h"
#include "tfctr/core/wire/predict_request.h"
#include "tfctr/core/wire/text.h"
#include "tfctr/core/wire/wire_tensor.h"

namespace tfctr {

namespace {

// A part of the protocol that is not offered.
class NotOffered : public BadRequest {
 public:
  NotOffered(const SignaturePlan& plan, const std::string& what) : BadRequest(plan.context + ": " + what) {}
};

class WireReader {
 public:
  WireReader(const SignaturePlan& plan, WireRequest* request)
      : plan_(plan), request_(*request), slots_(plan.entries.size(), -1) {
    request_.values = std::vector<PartValue>(plan.parts.size());
    request_.absent.clear();
    request_.outputs.clear();
  }

  // Throw BadRequest.
  void ReadPredict(std::string_view body);
  void ReadInfer(std::string_view body);
  bool ReadJson(const JsonInferView& view, int64_t max_rows);

 private:
  size_t EntryOf(std::string_view name) const;
  void AskFor(std::string_view output);
  [[noreturn]] void FailEntry(const Entry& entry, std::string got) const;
  // The tensor of `tensor_` as the value of an entry.
  void Take(const Entry& entry);
  void TakeNumbers(const Part& part, PartValue* value);
  void TakeStrings(const Part& part, PartValue* value);

  const SignaturePlan& plan_;
  WireRequest& request_;
  std::vector<int> slots_;  // by entry: which input of the message it is; -1: none
  WireTensor tensor_;
  int64_t filled_ = 0;
};

size_t WireReader::EntryOf(std::string_view name) const {
  const Entry* entry = plan_.FindEntry(name);
  if (entry == nullptr) FailUnknown(plan_, name);
  return static_cast<size_t>(entry - plan_.entries.data());
}

void WireReader::AskFor(std::string_view name) {
  const std::vector<Output>& outputs = plan_.plain.outputs;
  const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const Output& one) { return one.name == name; });
  if (found == outputs.end()) {
    std::string text = "there is no output " + ShownText(name) + "; the signature gives ";
    constexpr size_t kShown = 12;
    for (size_t i = 0; i < outputs.size() && i < kShown; ++i) text += (i > 0 ? ", " : "") + Quoted(outputs[i].name);
    if (outputs.size() > kShown) text += " and " + std::to_string(outputs.size() - kShown) + " more";
    Fail(plan_, text);
  }
  const std::vector<std::string>& asked = request_.outputs;
  if (std::find(asked.begin(), asked.end(), name) == asked.end()) request_.outputs.emplace_back(name);
}

void WireReader::FailEntry(const Entry& entry, std::string got) const {
  const Mismatch mismatch(std::move(got));
  if (entry.part < 0) FailFeature(plan_, plan_.features[static_cast<size_t>(entry.feature)], mismatch);
  FailPart(plan_, plan_.parts[static_cast<size_t>(entry.part)], mismatch);
}

void WireReader::TakeNumbers(const Part& part, PartValue* value) {
  std::string got;
  const char* data = nullptr;
  const auto type = static_cast<tensorflow::DataType>(tensor_.type->type);
  if (tensor_.type->bytes == 0) throw Mismatch(tensor_.Describe());
  if (!ReadNumbers(tensor_, &filled_, &request_.memory, &data, &got)) throw Mismatch(got);
  if (type != part.dtype) {
    // CountElements bounds the product; values that are there are as many as the bytes, or were budgeted.
    char* cast = request_.memory.Take(static_cast<size_t>(tensor_.elements) * part.element_bytes);
    const int64_t bad = CastNumbers(type, data, tensor_.elements, part.dtype, cast);
    if (bad == kCastRefused) throw Mismatch(tensor_.Describe());
    if (bad != kCastFine) {
      throw Mismatch(tensor_.Describe() + " with the value " + ShowNumber(type, data, bad) + ", which does not fit");
    }
    data = cast;
  }
  value->source = PartValue::Source::kBytes;
  value->data = data;
}

void WireReader::TakeStrings(const Part& part, PartValue* value) {
  std::string got;
  if (tensor_.type->bytes != 0 && tensor_.elements != 0) throw Mismatch(tensor_.Describe());
  const std::string_view* views = nullptr;
  if (tensor_.type->bytes == 0 && !ReadStrings(tensor_, &filled_, &request_.memory, &views, &got)) throw Mismatch(got);
  value->source = PartValue::Source::kViews;
  value->data = reinterpret_cast<const char*>(views);
}

void WireReader::Take(const Entry& entry) {
  const bool whole = entry.part < 0;  // the name of a feature alone: its rows, all of one length
  int number = entry.part;
  if (whole) {
    const Feature& feature = plan_.features[static_cast<size_t>(entry.feature)];
    for (const int part : feature.parts) FailIfTwice(plan_, request_.values, part);
    number = feature.values;
  } else {
    FailIfTwice(plan_, request_.values, number);
  }
  const Part& part = plan_.parts[static_cast<size_t>(number)];
  PartValue* value = &request_.values[static_cast<size_t>(number)];
  try {
    if (part.element_bytes == 0) {
      TakeStrings(part, value);
    } else {
      TakeNumbers(part, value);
    }
    value->elements = tensor_.elements;
    value->dims.assign(tensor_.dims, tensor_.dims + tensor_.rank);
    if (whole) {
      SplitRectangle(plan_, plan_.features[static_cast<size_t>(entry.feature)], &request_.values);
    } else {
      CheckShape(part, value);
    }
  } catch (const Mismatch& mismatch) {
    FailEntry(entry, mismatch.got());
  }
}

void WireReader::ReadPredict(std::string_view body) {
  PredictRequestView view;
  std::string error;
  if (!ParsePredictRequest(body, /*with_inputs=*/true, &view, &error)) Fail(plan_, error);
  for (size_t i = 0; i < view.inputs.size(); ++i) slots_[EntryOf(view.inputs[i].name)] = static_cast<int>(i);
  for (size_t e = 0; e < slots_.size(); ++e) {
    if (slots_[e] < 0) continue;
    const Entry& entry = plan_.entries[e];
    if (!ParseTensorProto(view.inputs[static_cast<size_t>(slots_[e])].value, &tensor_, &error)) FailEntry(entry, error);
    Take(entry);
  }
  for (const std::string_view output : view.output_filter) AskFor(output);
  request_.memory.TakeOver(std::move(view.memory));
}

void WireReader::ReadInfer(std::string_view body) {
  InferRequestView view;
  std::string error;
  if (!ParseInferRequest(body, /*with_inputs=*/true, &view, &error)) Fail(plan_, error);
  request_.id = std::string(view.id);
  if (view.shared_memory >= 0) {
    const std::string name = ShownText(view.inputs[static_cast<size_t>(view.shared_memory)].name);
    throw NotOffered(plan_, "input " + name +
                                ": got a region of shared memory, which is not supported here; send the data in the "
                                "request");
  }
  for (size_t i = 0; i < view.inputs.size(); ++i) {
    int& slot = slots_[EntryOf(view.inputs[i].name)];
    if (slot >= 0) Fail(plan_, "input " + ShownText(view.inputs[i].name) + " is given twice");
    slot = static_cast<int>(i);
  }
  for (size_t e = 0; e < slots_.size(); ++e) {
    if (slots_[e] < 0) continue;
    const Entry& entry = plan_.entries[e];
    if (!ParseInferInput(&view, static_cast<size_t>(slots_[e]), &tensor_, &error)) FailEntry(entry, error);
    Take(entry);
  }
  for (const InferOutputView& output : view.outputs) {
    AskFor(output.name);
    for (const ParameterView& parameter : output.parameters) {
      if (parameter.name == "binary_data" || (parameter.name == "classification" && parameter.number == 0)) continue;
      const std::string text = "output " + ShownText(output.name) + ": the parameter " + ShownText(parameter.name) +
                               " is not supported here";
      if (parameter.name == "classification" || parameter.name.substr(0, 13) == "shared_memory") {
        throw NotOffered(plan_, text);
      }
      Fail(plan_, text);
    }
  }
  request_.memory.TakeOver(std::move(view.memory));
}

bool WireReader::ReadJson(const JsonInferView& view, int64_t max_rows) {
  std::string got;
  for (const JsonInferInput& input : view.inputs) {
    tensor_ = WireTensor();
    for (const int64_t dim : input.dims) {
      if (!AddDim(dim, &tensor_, &got)) return false;
    }
    if (!SetInferTensor(input.datatype, /*contents=*/{}, /*has_raw=*/true, input.raw, &tensor_, &got)) return false;
    if (tensor_.rank > 0 && tensor_.dims[0] > max_rows) return false;
    Take(plan_.entries[EntryOf(input.name)]);
  }
  return true;
}

// Runs `f`, whose exceptions become a status.
template <typename F>
absl::Status WithStatus(const SignaturePlan& plan, F f) {
  try {
    f();
  } catch (const NotOffered& error) {
    return absl::UnimplementedError(error.what());
  } catch (const BadRequest& error) {
    return absl::InvalidArgumentError(error.what());
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(plan.context + ": no memory for a request of this size");
  } catch (const std::length_error&) {
    return absl::ResourceExhaustedError(plan.context + ": no memory for a request of this size");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Protocol> ProtocolFromName(std::string_view name) {
  if (name == "tfs") return Protocol::kTfServing;
  if (name == "kserve") return Protocol::kKServe;
  return absl::InvalidArgumentError("protocol " + ShownText(name) + ", expected 'tfs' or 'kserve'");
}

absl::Status ReadWire(Protocol protocol, std::string_view body, const SignaturePlan& plan, WireRequest* request) {
  return WithStatus(plan, [&] {
    WireReader reader(plan, request);
    if (protocol == Protocol::kTfServing) {
      reader.ReadPredict(body);
    } else {
      reader.ReadInfer(body);
    }
    FinishValues(plan, &request->values, &request->absent);
  });
}

bool ReadJsonInfer(const SignaturePlan& plan, const JsonInferView& view, int64_t max_rows, WireRequest* request) {
  bool read = false;
  const absl::Status status = WithStatus(plan, [&] {
    read = WireReader(plan, request).ReadJson(view, max_rows);
    if (read) FinishValues(plan, &request->values, &request->absent);
  });
  return status.ok() && read;
}

absl::StatusOr<PackedRequest> PackWire(const SignaturePlan& plan, WireRequest* request,
                                       const std::vector<std::string>& users) {
  PackedRequest packed;
  const absl::Status status = WithStatus(plan, [&] {
    packed = PackValues(plan, &request->values, std::move(request->absent), users);
    if (!packed.arena.IsInitialized() || !packed.strings.IsInitialized()) throw std::bad_alloc();
  });
  if (!status.ok()) return status;
  return packed;
}

}  // namespace tfctr
