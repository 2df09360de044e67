// Keys, depth and paths of JSON texts, well-formed and not.
#include "tfctr/core/wire/json_text.h"

#include <cstdio>
#include <cstdlib>
#include <random>

#include "tfctr/core/test_check.h"

namespace tfctr {
namespace {

void TestScan() {
  JsonShape shape = ScanJson(R"({"a": [1, {"b:": "x:y{[\":"}], "a" : "\\"})");
  CHECK(shape.keys == 3);
  CHECK(shape.depth == 3);
  CHECK(ScanJson("").depth == 0);
  CHECK(ScanJson(std::string(100000, '[')).depth == 100000);
  CHECK(ScanJson("]]]][").depth == 0);
  CHECK(ScanJson(R"("{{{)").depth == 0);
}

void TestPath() {
  const std::string text = R"({"signature_name": "s", "instances": [{"a": 1}, {"b,": [2, NaN], "c": 3}]})";
  CHECK(JsonPath(text, text.find("NaN")) == "instances[1].b,[1]");
  CHECK(JsonPath(text, text.find("3}")) == "instances[1].c");
  CHECK(JsonPath(text, text.find("\"s\"")) == "signature_name");
  CHECK(JsonPath(text, 0).empty());
  CHECK(JsonPath(text, text.size() + 5).empty());
  CHECK(JsonPath(std::string(1000, '['), 1000).size() == 3 * 16 + 3);
  CHECK(JsonPath(R"({")" + std::string(1000, 'k') + R"(": 1e999})", 1007) == std::string(80, 'k') + "...");
}

void TestAnyBytes() {
  std::mt19937 random(3);
  const std::string alphabet = "{}[]\":,\\a1 \n\xff";
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    const JsonShape shape = ScanJson(text);
    CHECK(shape.keys >= 0 && shape.depth >= 0 && shape.depth <= static_cast<int64_t>(text.size()));
    CHECK(JsonPath(text, random() % 50).size() < 1000);
  }
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestScan();
  tfctr::TestPath();
  tfctr::TestAnyBytes();
}
