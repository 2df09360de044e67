// libFuzzer: any bytes as a request of either protocol, as a tensor, as text. See README.md.
#include <cstddef>
#include <cstdint>

#include "tfctr/core/wire/fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tfctr::fuzz::CheckAny({reinterpret_cast<const char*>(data), size});
  return 0;
}
