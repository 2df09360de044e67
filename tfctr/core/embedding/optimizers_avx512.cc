// The optimizers on CPUs with AVX-512 (F, BW, DQ, VL). Not to be called before the CPU was checked (isa.h).
#define TFCTR_APPLY ApplyAvx512
#define TFCTR_ISA_NAMESPACE isa_avx512
#define TFCTR_VECTOR_BYTES 64
#include "tfctr/core/embedding/optimizers_impl.h"
