// Status and Result<T>: how the TensorFlow-free storage library reports errors. Values, no exceptions.
// Thread-safety: plain values. Cost: an ok Status holds an empty string and allocates nothing.
#ifndef TFCTR_CORE_STORAGE_STATUS_H_
#define TFCTR_CORE_STORAGE_STATUS_H_

#include <optional>
#include <string>
#include <utility>

namespace tfctr {

enum class Code : int {
  kOk = 0,
  kInvalid,   // the caller asked for something that cannot be (wrong size, duplicate key, unknown dtype)
  kNotFound,  // no such file or entry
  kCorrupt,   // the bytes are not what was written
  kIo,        // the operating system refused (permission, read-only file system, ...)
  kNoSpace,   // disk, quota or file size limit is full
};

struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;

  bool ok() const { return code == Code::kOk; }

  static Status Ok() { return Status(); }
  static Status Invalid(std::string m) { return Status{Code::kInvalid, std::move(m)}; }
  static Status NotFound(std::string m) { return Status{Code::kNotFound, std::move(m)}; }
  static Status Corrupt(std::string m) { return Status{Code::kCorrupt, std::move(m)}; }
  static Status Io(std::string m) { return Status{Code::kIo, std::move(m)}; }
  static Status NoSpace(std::string m) { return Status{Code::kNoSpace, std::move(m)}; }
};

// Either a value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit on purpose
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose

  bool ok() const { return status_.ok() && value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T Take() { return std::move(*value_); }

 private:
  Status status_;
  std::optional<T> value_;
};

// Returns from the enclosing function when `expr` is not ok.
#define TFCTR_RETURN_IF_ERROR(expr)                \
  do {                                             \
    ::tfctr::Status tfctr_status_ = (expr);        \
    if (!tfctr_status_.ok()) return tfctr_status_; \
  } while (false)

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_STATUS_H_
