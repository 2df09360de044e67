// Which instruction set the hot loops (lookups, initial values, optimizers) run with. Chosen once per process: the best
// one that the CPU and the operating system support, or the one that the environment variable TFCTR_ISA asks for
// (baseline, avx2, avx512). Results are bit-equal whatever is chosen. Thread-safety: pure functions; the choice is made
// on first use and never changes.
#ifndef TFCTR_CORE_STORAGE_ISA_H_
#define TFCTR_CORE_STORAGE_ISA_H_

#include "tfctr/core/export.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

enum class Isa : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

// "baseline", "avx2", "avx512".
TFCTR_EXPORT const char* IsaName(Isa isa);

// The best one that this CPU supports.
TFCTR_EXPORT Isa DetectedIsa();

// The one in use. kInvalid, naming both, when TFCTR_ISA asks for what the CPU lacks or for an unknown name.
TFCTR_EXPORT Result<Isa> ActiveIsa();

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_ISA_H_
