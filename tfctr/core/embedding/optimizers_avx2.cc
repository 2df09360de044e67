// The optimizers on CPUs with AVX2. Not to be called before the CPU was checked (isa.h).
#define TFCTR_APPLY ApplyAvx2
#define TFCTR_ISA_NAMESPACE isa_avx2
#define TFCTR_VECTOR_BYTES 32
#include "tfctr/core/embedding/optimizers_impl.h"
