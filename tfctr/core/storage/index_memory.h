// Memory of the index arrays of a table. Arrays of middling size share chunks of huge pages: on small pages, most
// probes of a table of a million rows would miss the TLB. Small ones come from malloc, large ones have their own
// mapping.
//
// Thread-safety: every method may be called from any thread.
// Cost: a mutex and a system call per array. An array that is given up leaves address space behind, no memory, until
// the whole chunk is free.
#ifndef TFCTR_CORE_STORAGE_INDEX_MEMORY_H_
#define TFCTR_CORE_STORAGE_INDEX_MEMORY_H_

#include <cstddef>
#include <map>
#include <mutex>

#include "tfctr/core/storage/hash_index.h"

namespace tfctr {

class IndexMemory {
 public:
  IndexMemory() = default;
  ~IndexMemory();
  IndexMemory(const IndexMemory&) = delete;
  IndexMemory& operator=(const IndexMemory&) = delete;

  // All entries empty; null when the system has no more memory.
  IndexArray* New(size_t capacity);
  void Delete(IndexArray* array);

 private:
  struct Chunk {
    size_t used = 0;   // bytes of arrays
    size_t fresh = 0;  // from here on it was never used
  };
  void* Take(size_t bytes);
  void Return(void* memory, size_t bytes);

  std::mutex mutex_;
  std::map<char*, Chunk> chunks_;
  char* last_ = nullptr;  // chunk, from which arrays are taken
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_INDEX_MEMORY_H_
