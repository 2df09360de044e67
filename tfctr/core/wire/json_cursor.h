// Reads a JSON text from left to right, strictly: what RFC 8259 does not have is refused. A text whose strings have
// escapes is refused too: what is read here points into the text. No memory, no recursion.
//
// Thread-safety: one object belongs to one thread at a time.
#ifndef TFCTR_CORE_WIRE_JSON_CURSOR_H_
#define TFCTR_CORE_WIRE_JSON_CURSOR_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tfctr {

struct JsonNumber {
  bool is_real = false;  // has a fraction or an exponent
  int64_t integer = 0;
  double real = 0;
};

class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  // The next character that is no white space; '\0' at the end.
  char Peek() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    return at_ < end_ ? *at_ : '\0';
  }
  // Whether `c` comes next; steps over it then.
  bool Take(char c) {
    if (Peek() != c || at_ == end_) return false;
    ++at_;
    return true;
  }
  bool AtEnd() { return Peek() == '\0' && at_ == end_; }
  const char* at() const { return at_; }

  // A string without escapes and control characters.
  bool Text(std::string_view* text);
  // A number that an int64, or (with a fraction or an exponent) a double, holds; "-0" is refused.
  bool Number(JsonNumber* number);
  // The same for the usual whole number. False, and nothing is read, for any other, and for what is none.
  bool PlainInteger(int64_t* integer) {
    Peek();
    const char* at = at_;
    const bool negative = at < end_ && *at == '-';
    if (negative) ++at;
    const char* const first = at;
    int64_t value = 0;
    constexpr std::ptrdiff_t kMostDigits = 18;  // no overflow
    while (at < end_ && *at >= '0' && *at <= '9' && at - first < kMostDigits) value = value * 10 + (*at++ - '0');
    const std::ptrdiff_t digits = at - first;
    if (digits == 0 || (*first == '0' && (digits > 1 || negative))) return false;
    if (at < end_ && ((*at >= '0' && *at <= '9') || *at == '.' || *at == 'e' || *at == 'E')) return false;
    *integer = negative ? -value : value;
    at_ = at;
    return true;
  }
  // true or false.
  bool Bool(bool* value);
  // Steps over a value without a look at its grammar: strings are minded, brackets are counted. False where it does not
  // end, or is more than `max_depth` deep. `value`: its text.
  bool Skip(int64_t max_depth, std::string_view* value);

 private:
  bool Real(const char* begin, const char* digits_end, JsonNumber* number);

  const char* at_;
  const char* const end_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_JSON_CURSOR_H_
