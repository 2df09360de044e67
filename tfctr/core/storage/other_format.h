// What is said of files of another format version, and how a caller tells: the error class is another one.
// Thread-safety: pure functions. Cost: a search in a message, on the way of an error only.
#ifndef TFCTR_CORE_STORAGE_OTHER_FORMAT_H_
#define TFCTR_CORE_STORAGE_OTHER_FORMAT_H_

#include <string>

#include "tfctr/core/storage/status.h"

namespace tfctr {

inline constexpr char kConvertAgain[] = "convert the model again with this tfctr";

inline Status OtherFormat(const std::string& path, const std::string& format, const std::string& read) {
  return Status::Invalid("'" + path + "' has " + format + ", this build reads " + read + ": " + kConvertAgain);
}

inline bool IsOtherFormat(const Status& status) {
  return status.code == Code::kInvalid && status.message.find(kConvertAgain) != std::string::npos;
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_OTHER_FORMAT_H_
