// Pieces of the spec's text form: splitting, percent-decoding, numbers. Internal to spec.cc.
// Thread-safety: pure functions.
#ifndef TFCTR_CORE_LOOKUP_SPEC_TEXT_H_
#define TFCTR_CORE_LOOKUP_SPEC_TEXT_H_

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tfctr/core/lookup/spec.h"

namespace tfctr {
namespace spec_text {

inline int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Percent-decoding; false on a broken escape.
inline bool Decode(std::string_view raw, std::string* text) {
  text->clear();
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '%') {
      text->push_back(raw[i]);
      continue;
    }
    if (i + 2 >= raw.size()) return false;
    const int high = HexDigit(raw[i + 1]);
    const int low = HexDigit(raw[i + 2]);
    if (high < 0 || low < 0) return false;
    text->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return true;
}

inline std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  while (true) {
    const size_t end = text.find(separator, start);
    parts.push_back(text.substr(start, end == std::string_view::npos ? end : end - start));
    if (end == std::string_view::npos) return parts;
    start = end + 1;
  }
}

inline bool ParseInt(const std::string& text, int64_t* value) {
  if (text.empty() || text[0] == ' ') return false;
  char* end = nullptr;
  errno = 0;
  const long long parsed = std::strtoll(text.c_str(), &end, 10);
  if (errno != 0 || *end != '\0') return false;
  *value = parsed;
  return true;
}

// Keys of hash_strong may be written signed or unsigned.
inline bool ParseUint64(const std::string& text, uint64_t* value) {
  int64_t negative;
  if (!text.empty() && text[0] == '-') {
    if (!ParseInt(text, &negative)) return false;
    *value = static_cast<uint64_t>(negative);
    return true;
  }
  if (text.empty() || text[0] == ' ') return false;
  char* end = nullptr;
  errno = 0;
  *value = std::strtoull(text.c_str(), &end, 10);
  return errno == 0 && *end == '\0';
}

inline bool ParseDouble(const std::string& text, double* value) {
  if (text.empty() || text[0] == ' ') return false;
  char* end = nullptr;
  *value = std::strtod(text.c_str(), &end);
  return *end == '\0';
}

inline TextValue MakeTextValue(std::string text) {
  TextValue value;
  int64_t integer;
  double number;
  if (ParseInt(text, &integer)) value.integer = integer;
  if (ParseDouble(text, &number)) value.number = number;
  value.text = std::move(text);
  return value;
}

}  // namespace spec_text
}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_SPEC_TEXT_H_
