// The number kernels for any x86-64 CPU, and the choice among the three.
#define TFCTR_ISA_NAMESPACE isa_baseline
#include "tfctr/core/lookup/number_impl.h"

namespace tfctr {

NumberKernel Avx2NumberKernel();
NumberKernel Avx512NumberKernel();

NumberKernel NumberKernelFor(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return Avx512NumberKernel();
    case Isa::kAvx2:
      return Avx2NumberKernel();
    case Isa::kBaseline:
      break;
  }
  return &isa_baseline::Number;
}

}  // namespace tfctr
