// Outputs of a run as the bytes of a reply message of either protocol. No Python, no GIL.
//
// TF Serving: a PredictResponse whose tensors carry their values in the list of their type (float_val, int64_val,
// string_val ...), as TF Serving writes them by default, so that clients which read `float_val` work and those that
// call tf.make_ndarray too; a list of floats is one memcpy, as tensor_content would be. KServe: a ModelInferResponse
// with raw_output_contents.
//
// Thread-safety: plain functions. Cost: one allocation of the exact size, one copy of the values.
#ifndef TFCTR_CORE_RUNTIME_WIRE_REPLY_H_
#define TFCTR_CORE_RUNTIME_WIRE_REPLY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/runtime/wire_input.h"

namespace tfctr {

// What the reply says about the model that answered.
struct ReplySpec {
  std::string model;
  int64_t version = 0;
  std::string signature;             // TF Serving
  std::string id;                    // KServe: the request's, given back
  std::vector<std::string> outputs;  // which outputs to write, in this order; empty: all
};

// One output, or some of its rows (of the first dimension).
struct ReplyOutput {
  std::string_view name;
  const tensorflow::Tensor* tensor = nullptr;
  int64_t first_row = 0;
  int64_t rows = -1;  // -1: the whole tensor
};

// InvalidArgument for an output that is asked for and not there; Internal for rows or a type that can't be written.
absl::StatusOr<std::string> WriteReply(Protocol protocol, const ReplySpec& spec, absl::Span<const ReplyOutput> outputs);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_WIRE_REPLY_H_
