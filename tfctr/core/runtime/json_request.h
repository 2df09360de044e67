// A request in JSON between "the model was chosen by it" and "its values were read".
//
// Thread-safety: one object belongs to one thread at a time.
#ifndef TFCTR_CORE_RUNTIME_JSON_REQUEST_H_
#define TFCTR_CORE_RUNTIME_JSON_REQUEST_H_

#include <cstdint>

#include "pybind11/pybind11.h"
#include "tfctr/core/wire/json_predict.h"

namespace tfctr {

struct JsonRequest {
  pybind11::bytes body;  // that the views point into
  int64_t max_rows = 0;
  bool infer = false;  // KServe's infer, else TF Serving's predict
  JsonPredictView predict;
  JsonInferView kserve;
  int64_t rows = -1;  // of the row form, once it was read
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_JSON_REQUEST_H_
