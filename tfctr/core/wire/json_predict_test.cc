// JSON requests as they are indexed: what is found, and that no prefix or change of a body is read beyond its end.
#include "tfctr/core/wire/json_predict.h"

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/test_check.h"
#include "tfctr/core/wire/json_cursor.h"

namespace tfctr {
namespace {

constexpr int64_t kDepth = 8;

// Calls `f` with a copy of `text` that ends where its memory does.
template <typename F>
void Exactly(std::string_view text, F f) {
  const std::unique_ptr<char[]> copy(new char[text.size()]);
  std::memcpy(copy.get(), text.data(), text.size());
  f(std::string_view(copy.get(), text.size()));
}

void TestPredict() {
  JsonPredictView view;
  CHECK(IndexJsonPredict(R"({"inputs": {"a": [1, 2], "b":[[3.5]]}, "signature_name" : "s"})", kDepth, &view));
  CHECK_EQ(view.signature, std::string_view("s"));
  CHECK(!view.by_rows);
  CHECK_EQ(view.inputs.size(), size_t{2});
  CHECK_EQ(view.inputs[1].name, std::string_view("b"));
  CHECK_EQ(view.inputs[1].value, std::string_view("[[3.5]]"));
  JsonPredictView rows;
  CHECK(IndexJsonPredict(R"({"instances": [{"a": "]}"}] })", kDepth, &rows));
  CHECK(rows.by_rows);
  CHECK_EQ(rows.instances, std::string_view(R"([{"a": "]}"}])"));
  JsonPredictView deep;
  CHECK(IndexJsonPredict(R"({"inputs": {"a": [[1]]}})", 4, &deep));
  JsonPredictView deeper;
  CHECK(!IndexJsonPredict(R"({"inputs": {"a": [[1]]}})", 3, &deeper));
}

void TestInfer() {
  JsonInferView view;
  const std::string_view head =
      R"({"id":"7","inputs":[{"name":"a","shape":[2,1],"datatype":"INT8","parameters":{"binary_data_size":2}}]})";
  CHECK(IndexJsonInfer(head, "xy", kDepth, &view));
  CHECK_EQ(view.rest, std::string(R"({"id":"7"})"));
  CHECK_EQ(view.inputs.size(), size_t{1});
  CHECK(view.inputs[0].dims == std::vector<int64_t>({2, 1}));
  CHECK_EQ(view.inputs[0].raw, std::string_view("xy"));
  JsonInferView more;
  CHECK(!IndexJsonInfer(head, "xyz", kDepth, &more));
}

void TestNumbers() {
  for (const std::string_view text : {"0", "-1", "123456789012345678", "9223372036854775807", "-9223372036854775808"}) {
    JsonNumber number;
    Exactly(text, [&](std::string_view exact) { CHECK(JsonCursor(exact).Number(&number)); });
    CHECK_EQ(std::to_string(number.integer), std::string(text));
    int64_t plain = 0;
    JsonCursor cursor(text);
    const bool is_plain = cursor.PlainInteger(&plain);
    CHECK_EQ(is_plain, text.size() <= 18);
    if (is_plain) CHECK_EQ(plain, number.integer);
    if (!is_plain) CHECK(cursor.at() == text.data());
  }
  for (const std::string_view text :
       {"", "-", "01", "-0", "1.", "1e", ".5", "+1", "9223372036854775808", "1e999", "x"}) {
    JsonNumber number;
    int64_t plain = 0;
    Exactly(text, [&](std::string_view exact) {
      CHECK(!JsonCursor(exact).Number(&number));
      CHECK(!JsonCursor(exact).PlainInteger(&plain));
    });
  }
}

// Every prefix, and every byte changed.
void TestDamaged() {
  const std::vector<std::string> bodies = {
      R"({"signature_name":"s","inputs":{"a":[1,-2.5e3,true],"b":[["x","y"],[]]}})",
      R"({"instances":[{"a":1,"b":[1,2]},{"a":3,"b":[]}]})",
      R"({"inputs":[{"name":"a","shape":[2],"datatype":"INT8","parameters":{"binary_data_size":2}}],"id":"i"})",
  };
  for (const std::string& body : bodies) {
    const auto read = [](std::string_view text) {
      Exactly(text, [](std::string_view exact) {
        JsonPredictView predict;
        IndexJsonPredict(exact, kDepth, &predict);
        JsonInferView infer;
        IndexJsonInfer(exact, "xy", kDepth, &infer);
      });
    };
    for (size_t end = 0; end <= body.size(); ++end) read(std::string_view(body).substr(0, end));
    for (size_t at = 0; at < body.size(); ++at) {
      for (const char c : std::string_view("\0\"\\{}[],:1-\xff ", 14)) {
        std::string changed = body;
        changed[at] = c;
        read(changed);
      }
    }
  }
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestPredict();
  tfctr::TestInfer();
  tfctr::TestNumbers();
  tfctr::TestDamaged();
  return 0;
}
