// KServe's ModelInferRequest, taken apart without copying.
//
// Thread-safety: plain functions and values over borrowed bytes. Cost: one look at each field of the message.
#ifndef TFCTR_CORE_WIRE_INFER_REQUEST_H_
#define TFCTR_CORE_WIRE_INFER_REQUEST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/wire/block_memory.h"
#include "tfctr/core/wire/wire_tensor.h"

namespace tfctr {

// An InferParameter.
struct ParameterView {
  enum class Kind : uint8_t { kNone, kBool, kInt64, kString, kDouble, kUint64 };
  std::string_view name;
  Kind kind = Kind::kNone;
  uint64_t number = 0;  // bits of whatever number it is
  std::string_view text;
};

struct InferInputView {
  std::string_view name;
  std::string_view message;  // the InferInputTensor
};

struct InferOutputView {
  std::string_view name;
  std::vector<ParameterView> parameters;
};

struct InferRequestView {
  std::string_view model, version, id;
  std::vector<ParameterView> parameters;  // of a repeated name the last one counts
  std::vector<InferInputView> inputs;
  std::vector<InferOutputView> outputs;
  std::vector<std::string_view> raw;  // raw_input_contents
  int shared_memory = -1;             // an input whose values are said to lie in shared memory
  BlockMemory memory;
};

// False with `error`, a whole sentence about the message, when it is none, or when raw_input_contents and inputs do not
// go together (where an input lies in shared memory they never do, and are not compared). `with_inputs` false leaves
// inputs and outputs out.
bool ParseInferRequest(std::string_view body, bool with_inputs, InferRequestView* request, std::string* error);

// Input `number` of the request as a tensor. False with `got`; see wire_tensor.h.
bool ParseInferInput(InferRequestView* request, size_t number, WireTensor* tensor, std::string* got);

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_INFER_REQUEST_H_
