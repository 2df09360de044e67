#include "tfctr/core/engines/cpu.h"

#include <cpuid.h>

#include <cstdint>

namespace tfctr {
namespace {

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf Ask(uint32_t leaf, uint32_t subleaf) {
  Leaf r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return Leaf();
  return r;
}

bool Bit(uint32_t word, int bit) { return (word >> bit & 1) != 0; }

// Register state that the kernel saves (XCR0); 0 where it saves none.
uint64_t SavedState() {
  if (!Bit(Ask(1, 0).ecx, 27)) return 0;
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

}  // namespace

std::string CpuIsa() {
  constexpr uint64_t kAvxState = 0x6;
  constexpr uint64_t kAvx512State = 0xe6;
  constexpr uint64_t kAmxState = 0x60000;
  const uint64_t state = SavedState();
  const Leaf one = Ask(1, 0);
  const Leaf seven = Ask(7, 0);
  const bool avx2 = (state & kAvxState) == kAvxState && Bit(seven.ebx, 5) && Bit(one.ecx, 12) && Bit(one.ecx, 29);
  if (!avx2) return "baseline";
  const bool avx512 = (state & kAvx512State) == kAvx512State && Bit(seven.ebx, 16) && Bit(seven.ebx, 17) &&
                      Bit(seven.ebx, 30) && Bit(seven.ebx, 31);
  if (!avx512) return "avx2";
  if (!Bit(Ask(7, 1).eax, 5)) return "avx512";
  const bool amx = (state & kAmxState) == kAmxState && Bit(seven.edx, 22) && Bit(seven.edx, 24);
  return amx ? "amx_bf16" : "avx512_bf16";
}

bool CpuHasBf16() {
  const std::string isa = CpuIsa();
  return isa == "avx512_bf16" || isa == "amx_bf16";
}

}  // namespace tfctr
