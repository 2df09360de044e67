// Values of a JSON request (tfctr/core/wire/json_predict.h) as one PartValue per part of the signature, straight from
// the text. No Python, no GIL.
//
// Takes what a Python request of the same lists would be taken as (request_reader.h), to the bit; anything else, bad
// values too, is left to that way, which says what is wrong.
//
// Thread-safety: plain functions. Cost: one pass over the values.
#ifndef TFCTR_CORE_RUNTIME_JSON_INPUT_H_
#define TFCTR_CORE_RUNTIME_JSON_INPUT_H_

#include "tfctr/core/runtime/json_request.h"
#include "tfctr/core/runtime/signature_plan.h"
#include "tfctr/core/runtime/wire_input.h"

namespace tfctr {

// False: left to the general way. Sets `json->rows`; `request` may hold views into the text.
bool ReadJson(const SignaturePlan& plan, JsonRequest* json, WireRequest* request);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_JSON_INPUT_H_
