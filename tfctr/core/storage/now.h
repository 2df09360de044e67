// The moment at which a lookup or an update happens, as the caller gives it.
// Thread-safety: a plain value.
#ifndef TFCTR_CORE_STORAGE_NOW_H_
#define TFCTR_CORE_STORAGE_NOW_H_

#include <cstdint>

namespace tfctr {

struct Now {
  int64_t step = 0;     // the model-wide training step
  int64_t time_ms = 0;  // milliseconds since 1970, or what the injected clock says
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_NOW_H_
