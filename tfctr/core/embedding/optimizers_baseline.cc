// The optimizers on any x86-64 CPU.
#define TFCTR_APPLY ApplyBaseline
#define TFCTR_ISA_NAMESPACE isa_baseline
#define TFCTR_VECTOR_BYTES 16
#include "tfctr/core/embedding/optimizers_impl.h"
