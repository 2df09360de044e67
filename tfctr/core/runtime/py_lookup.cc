#include "tfctr/core/runtime/py_lookup.h"

#include <string>

#include "tfctr/core/storage/isa.h"

namespace tfctr {
namespace {

std::string IsaInUse() {
  const Result<Isa> isa = ActiveIsa();
  if (!isa.ok()) throw pybind11::value_error(isa.status().message);
  return IsaName(isa.value());
}

}  // namespace

void BindLookup(pybind11::module_& module) {
  module.def(
      "isa_name", &IsaInUse,
      "Instruction set of the lookup kernels: 'baseline', 'avx2' or 'avx512'. The environment variable TFCTR_ISA "
      "asks for one when the process starts; ValueError when the CPU lacks it.");
  module.def(
      "detected_isa", [] { return std::string(IsaName(DetectedIsa())); },
      "The best instruction set that this CPU supports, whatever TFCTR_ISA says.");
}

}  // namespace tfctr
