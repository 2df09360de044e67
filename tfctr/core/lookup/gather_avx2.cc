// The gather kernels for CPUs with AVX2 and F16C. Nothing here may be called before the CPU was checked (isa.h).
#pragma GCC target("f16c")
#define TFCTR_ISA_NAMESPACE isa_avx2
#define TFCTR_VECTOR_BYTES 32
#include "tfctr/core/lookup/gather_impl.h"

namespace tfctr {

const GatherKernels& Avx2Kernels();
const GatherKernels& Avx2Kernels() { return isa_avx2::kKernels; }

}  // namespace tfctr
