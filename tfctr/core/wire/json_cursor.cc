#include "tfctr/core/wire/json_cursor.h"

#include <array>
#include <charconv>
#include <system_error>

namespace tfctr {

namespace {

enum Kind : uint8_t { kOther, kQuote, kOpen, kClose, kEnd };

constexpr std::array<uint8_t, 256> MakeKinds() {
  std::array<uint8_t, 256> kinds{};
  kinds['"'] = kQuote;
  kinds['{'] = kinds['['] = kOpen;
  kinds['}'] = kinds[']'] = kClose;
  kinds[','] = kEnd;  // of a value that is no list and no object
  return kinds;
}

constexpr std::array<uint8_t, 256> kKinds = MakeKinds();

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

const char* SkipDigits(const char* at, const char* end) {
  while (at < end && IsDigit(*at)) ++at;
  return at;
}

}  // namespace

bool JsonCursor::Text(std::string_view* text) {
  if (Peek() != '"') return false;
  const char* begin = ++at_;
  while (at_ < end_ && *at_ != '"') {
    if (*at_ == '\\' || static_cast<uint8_t>(*at_) < 0x20) return false;
    ++at_;
  }
  if (at_ == end_) return false;
  *text = std::string_view(begin, static_cast<size_t>(at_ - begin));
  ++at_;
  return true;
}

bool JsonCursor::Number(JsonNumber* number) {
  Peek();
  const char* const begin = at_;
  const char* at = at_;
  const bool negative = at < end_ && *at == '-';
  if (negative) ++at;
  if (at == end_ || !IsDigit(*at)) return false;
  uint64_t value = 0;
  bool fits = true;
  const char* const first = at;
  while (at < end_ && IsDigit(*at)) {
    const auto digit = static_cast<uint64_t>(*at - '0');
    if (at - first < 18) {
      value = value * 10 + digit;
    } else {
      fits =
          fits && !__builtin_mul_overflow(value, uint64_t{10}, &value) && !__builtin_add_overflow(value, digit, &value);
    }
    ++at;
  }
  if (*first == '0' && at - first > 1) return false;
  if (at < end_ && (*at == '.' || *at == 'e' || *at == 'E')) return Real(begin, at, number);
  const uint64_t most = static_cast<uint64_t>(INT64_MAX) + (negative ? 1 : 0);
  if (!fits || value > most || (negative && value == 0)) return false;
  number->is_real = false;
  number->integer = static_cast<int64_t>(negative ? uint64_t{0} - value : value);
  at_ = at;
  return true;
}

bool JsonCursor::Real(const char* begin, const char* digits_end, JsonNumber* number) {
  const char* at = digits_end;
  if (*at == '.') {
    const char* const fraction = at + 1;
    at = SkipDigits(fraction, end_);
    if (at == fraction) return false;
  }
  if (at < end_ && (*at == 'e' || *at == 'E')) {
    ++at;
    if (at < end_ && (*at == '+' || *at == '-')) ++at;
    const char* const exponent = at;
    at = SkipDigits(exponent, end_);
    if (at == exponent) return false;
  }
  const auto [stop, error] = std::from_chars(begin, at, number->real);
  if (error != std::errc() || stop != at) return false;
  number->is_real = true;
  at_ = at;
  return true;
}

bool JsonCursor::Bool(bool* value) {
  const char first = Peek();
  const std::string_view word = first == 't' ? "true" : "false";
  if (std::string_view(at_, static_cast<size_t>(end_ - at_)).substr(0, word.size()) != word) return false;
  at_ += word.size();
  *value = first == 't';
  return true;
}

bool JsonCursor::Skip(int64_t max_depth, std::string_view* value) {
  if (Peek() == '\0') return false;
  const char* const begin = at_;
  int64_t depth = 0;
  while (at_ < end_) {
    const uint8_t kind = kKinds[static_cast<uint8_t>(*at_)];
    if (kind == kQuote) {
      std::string_view text;
      if (!Text(&text)) return false;
      if (depth == 0) break;
      continue;
    }
    if (kind == kOpen && ++depth > max_depth) return false;
    if (kind == kClose && --depth <= 0) {
      if (depth == 0) ++at_;  // its own; else that of the list or object around it
      break;
    }
    if (kind == kEnd && depth == 0) break;
    ++at_;
  }
  *value = std::string_view(begin, static_cast<size_t>(at_ - begin));
  return depth <= 0 && !value->empty();
}

}  // namespace tfctr
