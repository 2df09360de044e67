// The gather kernels for CPUs with AVX-512 (F, BW, DQ, VL). Nothing here may be called before the CPU was checked
// (isa.h).
#pragma GCC target("f16c")
#define TFCTR_ISA_NAMESPACE isa_avx512
#define TFCTR_VECTOR_BYTES 64
#include "tfctr/core/lookup/gather_impl.h"

namespace tfctr {

const GatherKernels& Avx512Kernels();
const GatherKernels& Avx512Kernels() { return isa_avx512::kKernels; }

}  // namespace tfctr
