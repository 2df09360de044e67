// Reading options: JSON (RFC 8259) into a tree. Small texts that our own Python writes; depth is
// limited. Thread-safety: plain values.
#ifndef TFCTR_CORE_STORAGE_JSON_H_
#define TFCTR_CORE_STORAGE_JSON_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct Json {
  enum class Kind { kNull, kBool, kNumber, kText, kList, kMap };
  Kind kind = Kind::kNull;
  bool flag = false;
  double number = 0;
  std::string text;
  std::vector<Json> list;
  std::map<std::string, Json> map;
};

// kInvalid saying at which character it goes wrong.
TFCTR_EXPORT Result<Json> ParseJson(std::string_view text);

// The tree as JSON: members in the order of their names, numbers so that reading gives them back.
TFCTR_EXPORT std::string WriteJson(const Json& value);

// `text` as a JSON string, quotes included.
TFCTR_EXPORT std::string JsonText(std::string_view text);

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_JSON_H_
