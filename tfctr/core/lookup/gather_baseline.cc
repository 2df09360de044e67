// The gather kernels for any x86-64 CPU, and the choice among the three.
#define TFCTR_ISA_NAMESPACE isa_baseline
#define TFCTR_VECTOR_BYTES 16
#include "tfctr/core/lookup/gather_impl.h"

namespace tfctr {

const GatherKernels& Avx2Kernels();
const GatherKernels& Avx512Kernels();

const GatherKernels& KernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return Avx512Kernels();
    case Isa::kAvx2:
      return Avx2Kernels();
    case Isa::kBaseline:
      break;
  }
  return isa_baseline::kKernels;
}

}  // namespace tfctr
