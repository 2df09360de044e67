// Questions about a JSON text that its parser does not answer: how deep it is and how many keys it has (a parser keeps
// the last of several equal keys), and what a position in it belongs to. Any bytes may come; they need not be JSON.
#ifndef TFCTR_CORE_WIRE_JSON_TEXT_H_
#define TFCTR_CORE_WIRE_JSON_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tfctr {

struct JsonShape {
  int64_t keys = 0;   // of all objects together
  int64_t depth = 0;  // most objects and lists inside each other
};

// One pass, no recursion, no memory.
JsonShape ScanJson(std::string_view text);

// Where `position` is: "instances[3].user_id", "inputs.tags[0]"; "" at the top. Long keys are cut.
std::string JsonPath(std::string_view text, size_t position);

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_JSON_TEXT_H_
