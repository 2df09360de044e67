// JSON: what is read, what is refused, and that texts survive.
#include "tfctr/core/storage/json.h"

#include <string>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

void Values() {
  const Json json =
      ParseJson(R"( {"a": [1, -2.5, 3e2], "b": {"c": true, "d": null}, "e": "x\"\\\nA", "f": []} )").Take();
  CHECK_EQ(json.map.at("a").list.size(), 3u);
  CHECK_EQ(json.map.at("a").list[1].number, -2.5);
  CHECK_EQ(json.map.at("a").list[2].number, 300.0);
  CHECK(json.map.at("b").map.at("c").flag);
  CHECK(json.map.at("b").map.at("d").kind == Json::Kind::kNull);
  CHECK_EQ(json.map.at("e").text, std::string("x\"\\\nA"));
  CHECK(json.map.at("f").list.empty());
  CHECK_EQ(ParseJson("\"\\u00e9\\u20ac\\ud83d\\ude00\"").Take().text, std::string("é€😀"));
  CHECK(!ParseJson("false").Take().flag);
}

void Refused() {
  for (const char* text : {"", "{", "[1,", "[1,]", "{\"a\"}", "{\"a\":}", "{a:1}", "tru", "01x", "\"abc", "\"\\x\"",
                           "1 2", "\"\\ud83d\"", "[1}", "-", "\"a\nb\"", "\"\\u12"}) {
    CHECK_FAILS(ParseJson(text).status(), Code::kInvalid, "is no JSON");
  }
  CHECK_FAILS(ParseJson(std::string(10000, '[')).status(), Code::kInvalid, "is no JSON");
}

void Texts() {
  std::string text;
  for (int c = 1; c < 128; ++c) text += static_cast<char>(c);
  text += "é€😀";
  CHECK_EQ(ParseJson(JsonText(text)).Take().text, text);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::Values();
  tfctr::Refused();
  tfctr::Texts();
  return 0;
}
