#include "tfctr/core/storage/row_arena.h"

#include <algorithm>

#include "tfctr/core/storage/page_memory.h"

namespace tfctr {
namespace {

constexpr size_t kFirstChunk = size_t{64} << 10;
constexpr size_t kLargestChunk = size_t{64} << 20;

}  // namespace

RowArena::~RowArena() {
  for (const Chunk& chunk : chunks_) UnmapMemory(chunk.memory, chunk.bytes);
}

RowArena::Block RowArena::Take(size_t rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (left_ == 0) {
    size_t bytes = std::min(std::max(mapped_, kFirstChunk), kLargestChunk);
    if (bytes > kHugePage) bytes = bytes / kHugePage * kHugePage;
    bytes = std::max(bytes, stride_);
    void* const memory = MapMemory(bytes);
    if (memory == nullptr) return Block();
    chunks_.push_back(Chunk{memory, bytes});
    mapped_ += bytes;
    next_ = static_cast<char*>(memory);
    left_ = bytes / stride_;
  }
  const Block block{next_, std::min(rows, left_)};
  next_ += block.rows * stride_;
  left_ -= block.rows;
  return block;
}

}  // namespace tfctr
