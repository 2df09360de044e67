#include "tfctr/core/storage/page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace tfctr {
namespace {

size_t Pages(size_t bytes) { return (bytes + kSmallPage - 1) / kSmallPage * kSmallPage; }

void* Map(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

void* MapMemory(size_t bytes) {
  bytes = Pages(bytes);
  if (bytes < kHugePage) return Map(bytes);
  // One huge page too many, then both ends go back: alignment costs address space, no memory.
  char* const wide = static_cast<char*>(Map(bytes + kHugePage));
  if (wide == nullptr) return nullptr;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(wide);
  const size_t front = (kHugePage - begin % kHugePage) % kHugePage;
  if (front != 0) ::munmap(wide, front);
  if (front != kHugePage) ::munmap(wide + front + bytes, kHugePage - front);
  ::madvise(wide + front, bytes, MADV_HUGEPAGE);  // advice: small pages do as well where it is refused
  return wide + front;
}

void TouchMemory(void* memory, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  ::madvise(memory, Pages(bytes), MADV_POPULATE_WRITE);  // an old kernel refuses: pages then come one by one, when used
#endif
}

void DropMemory(void* memory, size_t bytes) { ::madvise(memory, Pages(bytes), MADV_DONTNEED); }

void UnmapMemory(void* memory, size_t bytes) {
  if (memory != nullptr) ::munmap(memory, Pages(bytes));
}

double MachineMemory() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace tfctr
