// Where the rows of a table lie: large chunks of memory, cut into blocks of rows that are handed out one after the
// other and never move or come back. (Erased rows are used again by whoever owns their block.)
//
// Thread-safety: Take may be called from any thread.
// Cost: a mutex per block. Chunks double up to 64 MB; the part of the last one that was not handed out is address
// space, not memory, save for the rest of one huge page.
#ifndef TFCTR_CORE_STORAGE_ROW_ARENA_H_
#define TFCTR_CORE_STORAGE_ROW_ARENA_H_

#include <cstddef>
#include <mutex>
#include <vector>

namespace tfctr {

class RowArena {
 public:
  struct Block {
    char* begin = nullptr;  // zeroed
    size_t rows = 0;        // 0 = the system has no more memory
  };

  explicit RowArena(size_t stride) : stride_(stride) {}
  ~RowArena();
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;

  // At least one and at most `rows` rows.
  Block Take(size_t rows);

 private:
  struct Chunk {
    void* memory;
    size_t bytes;
  };
  const size_t stride_;
  std::mutex mutex_;
  std::vector<Chunk> chunks_;
  size_t mapped_ = 0;
  char* next_ = nullptr;
  size_t left_ = 0;  // rows in the last chunk
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_ROW_ARENA_H_
