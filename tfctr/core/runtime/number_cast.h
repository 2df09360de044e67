// Casts of whole arrays by the rules of numbers.h. No Python.
#ifndef TFCTR_CORE_RUNTIME_NUMBER_CAST_H_
#define TFCTR_CORE_RUNTIME_NUMBER_CAST_H_

#include <cstdint>
#include <string>

#include "tensorflow/core/framework/types.h"

namespace tfctr {

inline constexpr int64_t kCastFine = -1, kCastRefused = -2;

// Casts `count` numbers at `from` (perhaps unaligned) to `to`. kCastFine, kCastRefused for a pair of types that is not
// cast, else the number of the first value that does not fit.
int64_t CastNumbers(tensorflow::DataType from_type, const char* from, int64_t count, tensorflow::DataType to_type,
                    char* to);

// Number `i` of those at `from`, for messages.
std::string ShowNumber(tensorflow::DataType type, const char* from, int64_t i);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_NUMBER_CAST_H_
