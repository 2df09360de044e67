// TF Serving's PredictRequest, taken apart without copying: whom it is for, and the bytes of each input's TensorProto.
//
// Thread-safety: plain functions and values over borrowed bytes. Cost: one look at each field of the message.
#ifndef TFCTR_CORE_WIRE_PREDICT_REQUEST_H_
#define TFCTR_CORE_WIRE_PREDICT_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/wire/block_memory.h"

namespace tfctr {

struct ModelSpecView {
  std::string_view name;
  std::string_view signature;
  std::optional<int64_t> version;  // one of version and label, or none
  std::optional<std::string_view> label;
};

// The message of one input or parameter: `value` may lie in the request's memory when it came in pieces.
struct NamedBytes {
  std::string_view name;
  std::string_view value;
};

struct PredictRequestView {
  ModelSpecView spec;
  std::vector<NamedBytes> inputs;  // in the order of the message; of a repeated name the last one counts
  std::vector<std::string_view> output_filter;
  BlockMemory memory;
};

// False with `error`, a whole sentence about the message, when it is none. `with_inputs` false leaves them out.
bool ParsePredictRequest(std::string_view body, bool with_inputs, PredictRequestView* request, std::string* error);

// All pieces of field `field` of a well-formed message, one after the other: so protobuf merges a message that comes in
// pieces.
std::string_view JoinPieces(std::string_view message, uint32_t field, BlockMemory* memory);

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_PREDICT_REQUEST_H_
