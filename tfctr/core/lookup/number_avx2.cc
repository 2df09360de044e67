// The number kernels for CPUs with AVX2. Nothing here may be called before the CPU was checked (isa.h).
#define TFCTR_ISA_NAMESPACE isa_avx2
#include "tfctr/core/lookup/number_impl.h"

namespace tfctr {

NumberKernel Avx2NumberKernel();
NumberKernel Avx2NumberKernel() { return &isa_avx2::Number; }

}  // namespace tfctr
