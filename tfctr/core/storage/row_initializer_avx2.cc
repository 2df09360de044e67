// Initial values on CPUs with AVX2. Not to be called before the CPU was checked (isa.h).
#define TFCTR_FILL FillAvx2
#define TFCTR_ISA_NAMESPACE isa_avx2
#define TFCTR_VECTOR_BYTES 32
#include "tfctr/core/storage/row_initializer_impl.h"
