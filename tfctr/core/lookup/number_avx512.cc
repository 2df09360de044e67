// The number kernels for CPUs with AVX-512. Nothing here may be called before the CPU was checked (isa.h).
#define TFCTR_ISA_NAMESPACE isa_avx512
#include "tfctr/core/lookup/number_impl.h"

namespace tfctr {

NumberKernel Avx512NumberKernel();
NumberKernel Avx512NumberKernel() { return &isa_avx512::Number; }

}  // namespace tfctr
