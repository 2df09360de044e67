#include "tfctr/core/wire/json_out.h"

#include <array>
#include <charconv>
#include <cmath>

namespace tfctr {

namespace {

constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

template <typename T>
void PutNumber(T value, std::string* out) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  out->append(text, static_cast<size_t>(end - text));
}

template <typename T>
void PutReal(T value, std::string* out) {
  if (std::isnan(value)) {
    *out += "NaN";
    return;
  }
  if (std::isinf(value)) {
    *out += value > 0 ? "Infinity" : "-Infinity";
    return;
  }
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  const std::string_view written(text, static_cast<size_t>(end - text));
  *out += written;
  if (written.find_first_of(".e") == std::string_view::npos) *out += ".0";
}

std::array<int8_t, 256> DecodeTable() {
  std::array<int8_t, 256> table;
  table.fill(-1);
  for (int i = 0; i < 64; ++i) table[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  return table;
}

}  // namespace

void PutJsonInteger(int64_t value, std::string* out) { PutNumber(value, out); }
void PutJsonUnsigned(uint64_t value, std::string* out) { PutNumber(value, out); }
void PutJsonFloat(float value, std::string* out) { PutReal(value, out); }
void PutJsonDouble(double value, std::string* out) { PutReal(value, out); }

void PutJsonText(std::string_view text, std::string* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  *out += '"';
  size_t plain = 0;  // start of what needs no escape
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out->append(text, plain, i - plain);
    plain = i + 1;
    switch (c) {
      case '"':
      case '\\':
        *out += '\\';
        *out += static_cast<char>(c);
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        *out += "\\u00";
        *out += kDigits[c >> 4];
        *out += kDigits[c & 15];
    }
  }
  out->append(text, plain, text.size() - plain);
  *out += '"';
}

void PutJsonBytes(std::string_view bytes, std::string* out) {
  *out += "{\"b64\": \"";
  size_t i = 0;
  const auto at = [&](size_t k) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[k])); };
  for (; i + 2 < bytes.size(); i += 3) {
    const uint32_t three = at(i) << 16 | at(i + 1) << 8 | at(i + 2);
    for (int shift = 18; shift >= 0; shift -= 6) *out += kAlphabet[three >> shift & 63];
  }
  const size_t left = bytes.size() - i;
  if (left > 0) {
    const uint32_t rest = at(i) << 16 | (left == 2 ? at(i + 1) << 8 : 0);
    *out += kAlphabet[rest >> 18 & 63];
    *out += kAlphabet[rest >> 12 & 63];
    *out += left == 2 ? kAlphabet[rest >> 6 & 63] : '=';
    *out += '=';
  }
  *out += "\"}";
}

bool DecodeBase64(std::string_view text, std::string* out) {
  static const std::array<int8_t, 256> kTable = DecodeTable();
  out->clear();
  if (text.size() % 4 != 0) return false;
  out->reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    const int padding = last && text[i + 3] == '=' ? (text[i + 2] == '=' ? 2 : 1) : 0;
    uint32_t bits = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int value = static_cast<int>(k) >= 4 - padding ? 0 : kTable[static_cast<uint8_t>(text[i + k])];
      if (value < 0) return false;
      bits = bits << 6 | static_cast<uint32_t>(value);
    }
    *out += static_cast<char>(bits >> 16);
    if (padding < 2) *out += static_cast<char>(bits >> 8);
    if (padding < 1) *out += static_cast<char>(bits);
  }
  return true;
}

}  // namespace tfctr
