// Memory of tables, straight from the operating system: zeroed, aligned, in huge pages where it is large, and returned
// to the system when it is freed (malloc would keep it).
// Thread-safety: pure functions. Cost: a system call each; the pages cost when they are first touched.
#ifndef TFCTR_CORE_STORAGE_PAGE_MEMORY_H_
#define TFCTR_CORE_STORAGE_PAGE_MEMORY_H_

#include <cstddef>

namespace tfctr {

inline constexpr size_t kSmallPage = 4096;
inline constexpr size_t kHugePage = size_t{2} << 20;

// Zeroed memory, aligned to kSmallPage; from kHugePage bytes on aligned to that and advised to be huge pages. Null when
// the system has no more. Give `bytes` to UnmapMemory as they were asked for.
void* MapMemory(size_t bytes);
// Gets all pages of mapped memory at once, for what will be written everywhere soon: several times cheaper than a fault
// for each page, and than two where it is read before it is written.
void TouchMemory(void* memory, size_t bytes);
// Gives the pages back and keeps the addresses, which hold zeros then.
void DropMemory(void* memory, size_t bytes);
void UnmapMemory(void* memory, size_t bytes);
// All memory of this machine, in bytes: the system promises more than that, and ends processes when it can't keep it.
double MachineMemory();

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_PAGE_MEMORY_H_
