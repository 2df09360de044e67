// Request bytes of both protocols as one PartValue per part of the signature, and on to the packed form. No Python, no
// GIL.
//
// TF Serving's PredictRequest and KServe's ModelInferRequest are read by our own parser (tfctr/core/wire): numbers
// given as bytes (tensor_content, raw_input_contents) stay where they are until they are copied into the arena; lists
// of values are decoded once. Types are cast by the rules of Python requests (numbers.h).
//
// Thread-safety: plain functions; one WireRequest belongs to one thread at a time. Cost: benchmarks/bench_wire.py.
#ifndef TFCTR_CORE_RUNTIME_WIRE_INPUT_H_
#define TFCTR_CORE_RUNTIME_WIRE_INPUT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/part_value.h"
#include "tfctr/core/runtime/signature_plan.h"
#include "tfctr/core/wire/block_memory.h"
#include "tfctr/core/wire/json_predict.h"

namespace tfctr {

enum class Protocol { kTfServing, kKServe };

// "tfs" or "kserve".
absl::StatusOr<Protocol> ProtocolFromName(std::string_view name);

// A request as it was read. Borrows from the body, which must outlive it.
struct WireRequest {
  std::vector<PartValue> values;     // one per part of the plan
  std::vector<int> absent;           // optional parts that were left out
  std::vector<std::string> outputs;  // the outputs asked for, all of them known to the plan; empty: all
  std::string id;                    // KServe's; "" when there is none
  BlockMemory memory;                // what had to be decoded
};

// Reads a request message. InvalidArgument names the model, the signature, the input, what came and what was expected;
// Unimplemented names the input in shared memory, or the output that a part of Triton's protocol is asked for.
absl::Status ReadWire(Protocol protocol, std::string_view body, const SignaturePlan& plan, WireRequest* request);

// KServe's infer over HTTP, with all values behind the JSON. False: left to the general way (json_input.h), for
// whatever reason.
bool ReadJsonInfer(const SignaturePlan& plan, const JsonInferView& view, int64_t max_rows, WireRequest* request);

// The packed form of what was read; takes `request` apart. The body must still be there.
absl::StatusOr<PackedRequest> PackWire(const SignaturePlan& plan, WireRequest* request,
                                       const std::vector<std::string>& users = {});

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_WIRE_INPUT_H_
