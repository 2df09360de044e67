// From a Python request (dict of arrays, lists, sparse and ragged tensors) to the packed form (packed_layout.h).
//
// Three steps: look at every value (request_reader.h; converting only what is not already right), decide which form
// runs (user_rows.h), then one allocation and one memcpy per input. Pack runs under the GIL; PackValues, the last two
// steps, needs it for Python strings only. No lock, no state. Cost: about 0.1 us per array of the right dtype, plus the
// bytes.
#ifndef TFCTR_CORE_RUNTIME_PACKER_H_
#define TFCTR_CORE_RUNTIME_PACKER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "pybind11/pybind11.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/runtime/part_value.h"
#include "tfctr/core/runtime/signature_plan.h"

namespace tfctr {

// A request ready to run; owns its memory.
struct PackedRequest {
  tensorflow::Tensor arena;    // uint8 [n]
  tensorflow::Tensor shapes;   // int64 [m]
  tensorflow::Tensor strings;  // string [s]
  std::vector<int> absent;     // optional parts that were left out; empty in the packed form
  bool split = false;          // for the split form of the plan
  bool repeated = false;       // user rows were repeated for every candidate
};

// Packs `request` (str -> value). Throws BadRequest with a message that names the model, the input, what came and what
// is expected. users: inputs that the request names as the user's, beside those that are declared (user_rows.h).
PackedRequest Pack(const SignaturePlan& plan, const pybind11::dict& request,
                   const std::vector<std::string>& users = {});

// The last two steps, for values that were read and checked (FinishValues), which it takes apart. Throws BadRequest.
PackedRequest PackValues(const SignaturePlan& plan, std::vector<PartValue>* values, std::vector<int> absent,
                         const std::vector<std::string>& users = {});

// Takes `value` as the whole feature: sets all its parts in `values` (indexed by part). Throws Mismatch.
void TakeFeature(const SignaturePlan& plan, const Feature& feature, pybind11::handle value,
                 std::vector<PartValue>* values);

// Where the feature's values hold an array of all its dimensions (every row has the same length): sets its other parts,
// and leaves the values with their own dimensions. No Python. Throws Mismatch.
void SplitRectangle(const SignaturePlan& plan, const Feature& feature, std::vector<PartValue>* values);

// Where the feature's values are there, one row after the other: sets its other parts. `splits`: row_splits of the
// values, outermost first; at least one. No Python. Throws Mismatch.
void SetRows(const SignaturePlan& plan, const Feature& feature, std::vector<std::vector<int64_t>> splits,
             std::vector<PartValue>* values);

// Checks that the parts of a feature agree with each other (as many indices as values ...). Throws Mismatch.
void CheckFeature(const SignaturePlan& plan, const Feature& feature, const std::vector<PartValue>& values);

// The largest number of rows that an input or feature has, or claims to have (dense_shape), and its name.
std::pair<int64_t, std::string> MostRows(const SignaturePlan& plan, const PackedRequest& request);

// For the message of a failed run: which inputs have how many rows, when they are not all the same; "" otherwise.
std::string DescribeRows(const SignaturePlan& plan, const PackedRequest& request);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PACKER_H_
