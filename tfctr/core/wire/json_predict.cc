#include "tfctr/core/wire/json_predict.h"

#include <algorithm>
#include <utility>

#include "tfctr/core/wire/json_cursor.h"
#include "tfctr/core/wire/text.h"

namespace tfctr {

namespace {

// Calls `f(name)` with the cursor before each value of an object; false where f or the grammar is.
template <typename F>
bool EachMember(JsonCursor* cursor, F f) {
  if (!cursor->Take('{')) return false;
  if (cursor->Take('}')) return true;
  do {
    std::string_view name;
    if (!cursor->Text(&name) || !cursor->Take(':') || !f(name)) return false;
  } while (cursor->Take(','));
  return cursor->Take('}');
}

template <typename F>
bool EachItem(JsonCursor* cursor, F f) {
  if (!cursor->Take('[')) return false;
  if (cursor->Take(']')) return true;
  do {
    if (!f()) return false;
  } while (cursor->Take(','));
  return cursor->Take(']');
}

bool Size(JsonCursor* cursor, int64_t* size) {
  JsonNumber number;
  if (!cursor->Number(&number) || number.is_real || number.integer < 0) return false;
  *size = number.integer;
  return true;
}

bool ReadInput(JsonCursor* cursor, std::string_view* tail, JsonInferInput* input) {
  int seen = 0;  // each of the four keys once
  int64_t bytes = 0;
  const bool read = EachMember(cursor, [&](std::string_view key) {
    const int bit = key == "name" ? 1 : key == "datatype" ? 2 : key == "shape" ? 4 : key == "parameters" ? 8 : 0;
    if (bit == 0 || (seen & bit) != 0) return false;
    seen |= bit;
    if (bit == 1) return cursor->Text(&input->name);
    if (bit == 2) return cursor->Text(&input->datatype);
    if (bit == 4) return EachItem(cursor, [&] { return Size(cursor, &input->dims.emplace_back()); });
    int64_t sizes = 0;
    return EachMember(cursor,
                      [&](std::string_view name) {
                        return name == "binary_data_size" && ++sizes == 1 && Size(cursor, &bytes);
                      }) &&
           sizes == 1;
  });
  if (!read || seen != 15 || input->name.empty() || static_cast<uint64_t>(bytes) > tail->size()) return false;
  input->raw = tail->substr(0, static_cast<size_t>(bytes));
  tail->remove_prefix(static_cast<size_t>(bytes));
  return true;
}

}  // namespace

bool IndexJsonPredict(std::string_view body, int64_t max_depth, JsonPredictView* view) {
  JsonCursor cursor(body);
  bool has_signature = false, has_values = false;
  const bool read = EachMember(&cursor, [&](std::string_view key) {
    if (key == "signature_name") {
      return !std::exchange(has_signature, true) && cursor.Text(&view->signature);
    }
    if ((key != "instances" && key != "inputs") || std::exchange(has_values, true)) return false;
    view->by_rows = key == "instances";
    if (view->by_rows) return cursor.Peek() == '[' && cursor.Skip(max_depth - 1, &view->instances);
    return EachMember(&cursor, [&](std::string_view name) {
      JsonMember& member = view->inputs.emplace_back();
      member.name = name;
      return cursor.Peek() == '[' && cursor.Skip(max_depth - 2, &member.value);
    });
  });
  return read && has_values && cursor.AtEnd() && IsUtf8(body);
}

bool IndexJsonInfer(std::string_view text, std::string_view tail, int64_t max_depth, JsonInferView* view) {
  constexpr int64_t kDepth = 4;  // of a shape
  if (max_depth < kDepth) return false;
  JsonCursor cursor(text);
  view->rest = "{";
  bool has_inputs = false;
  const bool read = EachMember(&cursor, [&](std::string_view key) {
    if (key == "inputs") {
      if (std::exchange(has_inputs, true)) return false;
      return EachItem(&cursor, [&] { return ReadInput(&cursor, &tail, &view->inputs.emplace_back()); });
    }
    std::string_view value;
    if (!cursor.Skip(max_depth - 1, &value)) return false;
    if (view->rest.size() > 1) view->rest += ",";
    view->rest.append("\"").append(key).append("\":").append(value);
    return true;
  });
  view->rest += "}";
  std::vector<std::string_view> names;
  for (const JsonInferInput& input : view->inputs) names.push_back(input.name);
  std::sort(names.begin(), names.end());
  const bool twice = std::adjacent_find(names.begin(), names.end()) != names.end();
  return read && has_inputs && !names.empty() && !twice && tail.empty() && cursor.AtEnd() && IsUtf8(text);
}

}  // namespace tfctr
