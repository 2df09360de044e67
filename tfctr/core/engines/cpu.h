// What this CPU can do that decides how an engine runs: tfctr/engines/isa.py says the same from /proc/cpuinfo.
// Thread-safety: pure function.
#ifndef TFCTR_CORE_ENGINES_CPU_H_
#define TFCTR_CORE_ENGINES_CPU_H_

#include <string>

#include "tfctr/core/export.h"

namespace tfctr {

// "baseline", "avx2", "avx512", "avx512_bf16" or "amx_bf16": the best that CPU and kernel support.
TFCTR_EXPORT std::string CpuIsa();

// Whether bfloat16 matrix products run in hardware.
TFCTR_EXPORT bool CpuHasBf16();

}  // namespace tfctr

#endif  // TFCTR_CORE_ENGINES_CPU_H_
