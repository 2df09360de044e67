// Requests in JSON, looked at as far as it takes to choose a model and to find the values: TF Serving's REST predict
// and KServe's infer. What is out of the ordinary (text with escapes, bytes in base64, "user", numbers beyond int64,
// keys that are there twice, anything that is no JSON) is left to the general way over Python, which also says what is
// wrong with it.
//
// Thread-safety: plain functions. Cost: one pass; keys and values stay in the text, which must outlive the view.
#ifndef TFCTR_CORE_WIRE_JSON_PREDICT_H_
#define TFCTR_CORE_WIRE_JSON_PREDICT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tfctr {

struct JsonMember {
  std::string_view name, value;
};

struct JsonPredictView {
  std::string_view signature;      // "" where none is named
  bool by_rows = false;            // "instances", else "inputs"
  std::vector<JsonMember> inputs;  // column form
  std::string_view instances;      // row form: the list
};

// False: not of the ordinary kind.
bool IndexJsonPredict(std::string_view body, int64_t max_depth, JsonPredictView* view);

struct JsonInferInput {
  std::string_view name, datatype;
  std::vector<int64_t> dims;
  std::string_view raw;  // its bytes behind the JSON
};

struct JsonInferView {
  std::string rest;  // the JSON without "inputs"
  std::vector<JsonInferInput> inputs;
};

// All values behind the JSON (`tail`), by binary_data_size. False: not of the ordinary kind.
bool IndexJsonInfer(std::string_view text, std::string_view tail, int64_t max_depth, JsonInferView* view);

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_JSON_PREDICT_H_
