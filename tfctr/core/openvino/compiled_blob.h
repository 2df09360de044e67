// A compiled model as a file: OpenVINO's own bytes behind a page that says what they were made from and for, so that
// nothing but the very same thing is ever run from one.
// Thread-safety: pure functions.
#ifndef TFCTR_CORE_OPENVINO_COMPILED_BLOB_H_
#define TFCTR_CORE_OPENVINO_COMPILED_BLOB_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "tfctr/core/storage/status.h"

namespace tfctr {

struct BlobIdentity {
  std::string onnx;       // fingerprint of the model
  std::string version;    // of OpenVINO, with its build
  std::string isa;        // CpuIsa()
  std::string precision;  // "fp32", "bf16"
  int64_t rows = 0;       // of the variant; 0: dynamic
  int64_t users = 0;
  int threads = 1;
};

std::string WrapBlob(const BlobIdentity& identity, std::string_view payload);

// The payload within `file`. kInvalid naming the first thing that is another, kCorrupt for damage.
Result<std::string_view> UnwrapBlob(const BlobIdentity& expected, std::string_view file);

}  // namespace tfctr

#endif  // TFCTR_CORE_OPENVINO_COMPILED_BLOB_H_
