#include "tfctr/core/storage/hash_index.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tfctr/core/storage/page_memory.h"

namespace tfctr {
namespace {

constexpr size_t kMapFrom = size_t{64} << 10;  // smaller arrays come from malloc

// Behind the last home: room for a cluster to run over, and the entry that is always empty.
size_t Tail(size_t capacity) { return std::min<size_t>(capacity / 8 + 8, 512); }

}  // namespace

size_t IndexArray::Bytes(size_t capacity) {
  const size_t bytes = sizeof(IndexArray) + (capacity + Tail(capacity)) * sizeof(IndexEntry);
  const size_t unit = bytes < kMapFrom ? alignof(IndexArray) : kSmallPage;
  return (bytes + unit - 1) / unit * unit;
}

IndexArray* IndexArray::New(size_t capacity) {
  const size_t bytes = Bytes(capacity);
  void* memory = nullptr;
  if (bytes < kMapFrom) {
    memory = std::aligned_alloc(alignof(IndexArray), bytes);
    if (memory != nullptr) std::memset(memory, 0, bytes);
  } else {
    memory = MapMemory(bytes);
    if (memory != nullptr) TouchMemory(memory, bytes);
  }
  if (memory == nullptr) return nullptr;
  IndexArray* const array = static_cast<IndexArray*>(memory);
  array->capacity = capacity;
  array->entries = capacity + Tail(capacity);
  array->bytes = bytes;
  return array;
}

void IndexArray::Delete(IndexArray* array) {
  if (array == nullptr) return;
  if (array->bytes < kMapFrom) {
    std::free(array);
  } else {
    UnmapMemory(array, array->bytes);
  }
}

}  // namespace tfctr
