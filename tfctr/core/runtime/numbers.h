// Casts between number types for request values: what a user would call lossless is done, the rest is refused.
//   integer or bool -> integer   when the value fits
//   integer, bool or float -> float   always, rounding; a finite value that would become infinite is refused
//   float -> integer, anything but bool -> bool   refused
#ifndef TFCTR_CORE_RUNTIME_NUMBERS_H_
#define TFCTR_CORE_RUNTIME_NUMBERS_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tensorflow/core/framework/types.h"

namespace tfctr {

template <typename T>
inline constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;
template <typename T>
inline constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

// Whether any value of type S may become a D.
template <typename S, typename D>
inline constexpr bool kCastAllowed = std::is_same_v<D, bool> ? std::is_same_v<S, bool> : (kIsFloat<D> || !kIsFloat<S>);

// False when this value does not fit. Only for allowed pairs.
template <typename S, typename D>
inline bool CastNumber(S from, D* to) {
  if constexpr (kIsInteger<D> && kIsInteger<S>) {
    const D cast = static_cast<D>(from);
    *to = cast;
    return static_cast<S>(cast) == from && ((cast < D{0}) == (from < S{0}));
  } else if constexpr (kIsFloat<D> && kIsFloat<S>) {
    *to = static_cast<D>(from);
    return !std::isfinite(static_cast<double>(from)) || std::isfinite(static_cast<double>(*to));
  } else if constexpr (kIsFloat<D> && !std::is_same_v<S, bool>) {
    *to = static_cast<D>(static_cast<double>(from));
    return std::isfinite(static_cast<double>(*to));
  } else if constexpr (kIsFloat<D>) {
    *to = static_cast<D>(from ? 1.0f : 0.0f);
    return true;
  } else {
    *to = static_cast<D>(from);  // from bool
    return true;
  }
}

// Calls `f(T{})` with the C++ type of `dtype` and returns its result; `otherwise` for types that are no plain numbers.
template <typename F, typename R>
R WithNumberType(tensorflow::DataType dtype, F&& f, R otherwise) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return f(float{});
    case tensorflow::DT_DOUBLE:
      return f(double{});
    case tensorflow::DT_HALF:
      return f(Eigen::half{});
    case tensorflow::DT_BFLOAT16:
      return f(Eigen::bfloat16{});
    case tensorflow::DT_INT8:
      return f(int8_t{});
    case tensorflow::DT_INT16:
      return f(int16_t{});
    case tensorflow::DT_INT32:
      return f(int32_t{});
    case tensorflow::DT_INT64:
      return f(int64_t{});
    case tensorflow::DT_UINT8:
      return f(uint8_t{});
    case tensorflow::DT_UINT16:
      return f(uint16_t{});
    case tensorflow::DT_UINT32:
      return f(uint32_t{});
    case tensorflow::DT_UINT64:
      return f(uint64_t{});
    case tensorflow::DT_BOOL:
      return f(bool{});
    default:
      return otherwise;
  }
}

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_NUMBERS_H_
