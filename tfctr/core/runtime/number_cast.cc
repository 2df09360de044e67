#include "tfctr/core/runtime/number_cast.h"

#include <cstdio>
#include <cstring>
#include <type_traits>

#include "tfctr/core/runtime/numbers.h"

namespace tfctr {

int64_t CastNumbers(tensorflow::DataType from_type, const char* from, int64_t count, tensorflow::DataType to_type,
                    char* to) {
  return WithNumberType(
      to_type,
      [&](auto to_number) {
        using D = decltype(to_number);
        return WithNumberType(
            from_type,
            [&](auto from_number) -> int64_t {
              using S = decltype(from_number);
              if constexpr (kCastAllowed<S, D>) {
                for (int64_t i = 0; i < count; ++i) {
                  S number;
                  D cast;
                  std::memcpy(static_cast<void*>(&number), from + static_cast<size_t>(i) * sizeof(S), sizeof(S));
                  if (!CastNumber<S, D>(number, &cast)) return i;
                  std::memcpy(to + static_cast<size_t>(i) * sizeof(D), static_cast<const void*>(&cast), sizeof(D));
                }
                return kCastFine;
              } else {
                return count == 0 ? kCastFine : kCastRefused;
              }
            },
            kCastRefused);
      },
      kCastRefused);
}

std::string ShowNumber(tensorflow::DataType type, const char* from, int64_t i) {
  return WithNumberType(
      type,
      [&](auto number) -> std::string {
        using S = decltype(number);
        std::memcpy(static_cast<void*>(&number), from + static_cast<size_t>(i) * sizeof(S), sizeof(S));
        if constexpr (std::is_same_v<S, bool>) {
          return number ? "True" : "False";
        } else if constexpr (kIsInteger<S>) {
          return std::to_string(number);
        } else {
          char text[32];
          std::snprintf(text, sizeof(text), "%.17g", static_cast<double>(number));
          return text;
        }
      },
      std::string("?"));
}

}  // namespace tfctr
