// Initial values on CPUs with AVX-512 (F, BW, DQ, VL). Not to be called before the CPU was checked (isa.h).
#define TFCTR_FILL FillAvx512
#define TFCTR_ISA_NAMESPACE isa_avx512
#define TFCTR_VECTOR_BYTES 64
#include "tfctr/core/storage/row_initializer_impl.h"
