// What must hold for any bytes that come as a request: used by the fuzzers (tests/fuzz) and by wire_corpus_test.cc,
// which replays their corpus. A broken promise ends the process.
#ifndef TFCTR_CORE_WIRE_FUZZ_CHECKS_H_
#define TFCTR_CORE_WIRE_FUZZ_CHECKS_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/wire/infer_request.h"
#include "tfctr/core/wire/json_out.h"
#include "tfctr/core/wire/json_text.h"
#include "tfctr/core/wire/predict_request.h"
#include "tfctr/core/wire/text.h"
#include "tfctr/core/wire/wire_tensor.h"

namespace tfctr::fuzz {

inline void Must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// Reads every byte, so that a sanitizer sees one that is not there.
inline uint64_t Sum(std::string_view bytes) {
  uint64_t sum = 0;
  for (const char byte : bytes) sum = sum * 31 + static_cast<uint8_t>(byte);
  return sum;
}
inline volatile uint64_t g_sink;
inline void Touch(std::string_view bytes) { g_sink = g_sink + Sum(bytes); }

// The values of an int64 or uint64 list, one by one and slowly; false when the list is malformed.
inline bool SlowVarints(const WireTensor& tensor, std::vector<uint64_t>* values) {
  ProtobufReader reader(tensor.message);
  while (reader.Next()) {
    if (reader.field() != tensor.list_field) continue;
    if (reader.kind() == WireKind::kVarint) values->push_back(reader.number());
    if (reader.kind() != WireKind::kBytes) continue;
    const std::string_view packed = reader.bytes();
    size_t at = 0;
    while (at < packed.size()) {
      uint64_t value = 0;
      int groups = 0;
      for (;; ++at) {
        if (at == packed.size() || groups == 10) return false;
        const auto byte = static_cast<uint8_t>(packed[at]);
        value |= static_cast<uint64_t>(byte & 0x7F) << (7 * groups++);
        if (byte < 0x80) break;
      }
      ++at;
      values->push_back(value);
    }
  }
  return !reader.failed();
}

inline void CheckError(const std::string& got) {
  Must(!got.empty(), "an error says something");
  Must(IsUtf8(got), "an error is text");
  constexpr size_t kLongest = 1000;
  Must(got.size() < kLongest, "an error is short");
}

inline void CheckTensor(const WireTensor& tensor) {
  constexpr int64_t kMost = int64_t{1} << 33;
  Must(tensor.rank >= 0 && tensor.rank <= kWireMaxRank, "rank");
  Must(tensor.elements >= 0, "elements");
  BlockMemory memory;
  std::string got;
  int64_t filled = 0;
  if (tensor.type->bytes == 0) {
    const std::string_view* views = nullptr;
    if (!ReadStrings(tensor, &filled, &memory, &views, &got)) return CheckError(got);
    for (int64_t i = 0; i < tensor.elements; ++i) Touch(views[i]);
  } else {
    const char* data = nullptr;
    std::vector<uint64_t> slow;
    const bool wide = tensor.type->bytes == 8 && tensor.type->type != ElementType::kDouble && !tensor.is_raw;
    const bool well_formed = !wide || SlowVarints(tensor, &slow);
    if (!ReadNumbers(tensor, &filled, &memory, &data, &got)) return CheckError(got);
    const auto bytes = static_cast<uint64_t>(tensor.elements) * tensor.type->bytes;
    Must(bytes < static_cast<uint64_t>(kMost), "size");
    Touch(std::string_view(data, bytes));
    Must(well_formed, "a malformed list is refused");
    if (wide) {
      Must(static_cast<int64_t>(slow.size()) <= tensor.elements, "not more values than the shape has");
      while (static_cast<int64_t>(slow.size()) < tensor.elements) slow.push_back(slow.empty() ? 0 : slow.back());
      Must(slow.empty() || std::memcmp(slow.data(), data, bytes) == 0, "the values are those of the list");
    }
  }
  Must(filled >= 0 && filled <= kMaxFilledBytes, "budget");
}

inline void CheckPredictRequest(std::string_view body) {
  PredictRequestView view, head;
  std::string error, unused;
  const bool ok = ParsePredictRequest(body, /*with_inputs=*/true, &view, &error);
  const bool head_ok = ParsePredictRequest(body, /*with_inputs=*/false, &head, &unused);
  Must(!ok || head_ok, "a request that can be read can be looked into");
  if (!ok) return CheckError(error);
  Must(head.spec.name == view.spec.name && head.inputs.empty(), "head");
  Must(!view.spec.version.has_value() || !view.spec.label.has_value(), "version or label");
  for (const NamedBytes& input : view.inputs) {
    Must(IsUtf8(input.name), "name");
    Touch(ShownText(input.name));
    WireTensor tensor;
    if (ParseTensorProto(input.value, &tensor, &error)) {
      CheckTensor(tensor);
    } else {
      CheckError(error);
    }
  }
}

inline void CheckInferRequest(std::string_view body) {
  InferRequestView view;
  std::string error;
  if (!ParseInferRequest(body, /*with_inputs=*/true, &view, &error)) return CheckError(error);
  for (const ParameterView& parameter : view.parameters) Touch(parameter.text);
  for (size_t i = 0; i < view.inputs.size(); ++i) {
    WireTensor tensor;
    if (ParseInferInput(&view, i, &tensor, &error)) {
      CheckTensor(tensor);
    } else {
      CheckError(error);
    }
  }
}

inline void CheckText(std::string_view bytes) {
  Must(IsUtf8(ShownText(bytes)), "shown text is text");
  std::string written, back;
  PutJsonBytes(bytes, &written);
  constexpr size_t kBefore = 9, kAfter = 2;  // {"b64": " and "}
  Must(DecodeBase64(std::string_view(written).substr(kBefore, written.size() - kBefore - kAfter), &back), "base64");
  Must(back == bytes, "base64 there and back");
  DecodeBase64(bytes, &back);
  Touch(back);
  written.clear();
  PutJsonText(bytes, &written);
  Must(ScanJson(written).depth == 0, "a text is one JSON string");
  ScanJson(bytes);
  JsonPath(bytes, bytes.size() / 2);
  const std::string_view half = bytes.substr(0, bytes.size() / 2);
  const double likeness = Likeness(half, bytes.substr(half.size()));
  Must(likeness >= 0 && likeness <= 1, "likeness");
}

// The first byte says what the others are.
inline void CheckAny(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::string_view rest = bytes.substr(1);
  switch (static_cast<uint8_t>(bytes[0]) % 4) {
    case 0:
      return CheckPredictRequest(rest);
    case 1:
      return CheckInferRequest(rest);
    case 2: {
      WireTensor tensor;
      std::string error;
      if (!ParseTensorProto(rest, &tensor, &error)) return CheckError(error);
      return CheckTensor(tensor);
    }
    default:
      return CheckText(rest);
  }
}

}  // namespace tfctr::fuzz

#endif  // TFCTR_CORE_WIRE_FUZZ_CHECKS_H_
