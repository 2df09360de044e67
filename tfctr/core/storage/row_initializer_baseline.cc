// Initial values on any x86-64 CPU.
#define TFCTR_FILL FillBaseline
#define TFCTR_ISA_NAMESPACE isa_baseline
#define TFCTR_VECTOR_BYTES 16
#include "tfctr/core/storage/row_initializer_impl.h"
