#include "tfctr/core/storage/hash_index.h"

#include <algorithm>

#include "tfctr/core/storage/page_memory.h"

namespace tfctr {
namespace {

constexpr size_t kPagesFrom = size_t{64} << 10;  // larger arrays fill whole pages

// Behind the last home: room for a cluster to run over, and the entry that is always empty.
size_t Tail(size_t capacity) { return std::min<size_t>(capacity / 8 + 8, 512); }

}  // namespace

size_t IndexArray::Entries(size_t capacity) { return capacity + Tail(capacity); }

size_t IndexArray::Bytes(size_t capacity) {
  const size_t bytes = sizeof(IndexArray) + Entries(capacity) * sizeof(IndexEntry);
  const size_t unit = bytes < kPagesFrom ? alignof(IndexArray) : kSmallPage;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace tfctr
