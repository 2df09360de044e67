#include "tfctr/core/storage/isa.h"

#include <cstdlib>
#include <string>

namespace tfctr {
namespace {

Result<Isa> Choose() {
  const Isa detected = DetectedIsa();
  const char* asked = std::getenv("TFCTR_ISA");
  if (asked == nullptr || *asked == '\0') return detected;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (std::string(asked) != IsaName(isa)) continue;
    if (static_cast<int>(isa) <= static_cast<int>(detected)) return isa;
    return Status::Invalid(std::string("TFCTR_ISA asks for ") + asked + ", but this CPU supports no more than " +
                           IsaName(detected));
  }
  return Status::Invalid(std::string("TFCTR_ISA is '") + asked +
                         "', expected baseline, avx2 or avx512 (this CPU: " + IsaName(detected) + ")");
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kBaseline:
      break;
  }
  return "baseline";
}

Isa DetectedIsa() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!avx2) return Isa::kBaseline;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? Isa::kAvx512 : Isa::kAvx2;
}

Result<Isa> ActiveIsa() {
  static const Result<Isa> chosen = Choose();
  return chosen;
}

}  // namespace tfctr
