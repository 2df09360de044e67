#include "tfctr/core/storage/index_memory.h"

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "tfctr/core/storage/page_memory.h"

namespace tfctr {
namespace {

constexpr size_t kShareFrom = size_t{64} << 10;
constexpr size_t kShareBelow = size_t{8} << 20;  // then what lies behind the last huge page of an array is little
constexpr size_t kChunk = size_t{32} << 20;

}  // namespace

IndexMemory::~IndexMemory() {
  for (const auto& chunk : chunks_) UnmapMemory(chunk.first, kChunk);
}

IndexArray* IndexMemory::New(size_t capacity) {
  const size_t bytes = IndexArray::Bytes(capacity);
  void* memory = nullptr;
  if (bytes < kShareFrom) {
    memory = std::aligned_alloc(alignof(IndexArray), bytes);
    if (memory != nullptr) std::memset(memory, 0, bytes);
  } else if (bytes < kShareBelow) {
    memory = Take(bytes);
  } else {
    memory = MapMemory(bytes);
    if (memory != nullptr) TouchMemory(memory, bytes);
  }
  if (memory == nullptr) return nullptr;
  IndexArray* const array = static_cast<IndexArray*>(memory);
  array->capacity = capacity;
  array->entries = IndexArray::Entries(capacity);
  array->bytes = bytes;
  return array;
}

void IndexMemory::Delete(IndexArray* array) {
  if (array == nullptr) return;
  const size_t bytes = array->bytes;
  if (bytes < kShareFrom) {
    std::free(array);
  } else if (bytes < kShareBelow) {
    Return(array, bytes);
  } else {
    UnmapMemory(array, bytes);
  }
}

void* IndexMemory::Take(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (last_ == nullptr || kChunk - chunks_[last_].fresh < bytes) {
    char* const memory = static_cast<char*>(MapMemory(kChunk));
    if (memory == nullptr) return nullptr;
    last_ = memory;
  }
  Chunk& chunk = chunks_[last_];
  char* const taken = last_ + chunk.fresh;
  chunk.fresh += bytes;
  chunk.used += bytes;
  return taken;
}

void IndexMemory::Return(void* memory, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::prev(chunks_.upper_bound(static_cast<char*>(memory)));
  found->second.used -= bytes;
  if (found->second.used != 0) {
    DropMemory(memory, bytes);
    return;
  }
  if (last_ == found->first) last_ = nullptr;
  UnmapMemory(found->first, kChunk);
  chunks_.erase(found);
}

}  // namespace tfctr
