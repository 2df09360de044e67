// Memory for one request: pieces cut from a few blocks, freed together. A request with a hundred decoded inputs costs
// one or two allocations instead of a hundred.
//
// Thread-safety: one object belongs to one thread at a time.
#ifndef TFCTR_CORE_WIRE_BLOCK_MEMORY_H_
#define TFCTR_CORE_WIRE_BLOCK_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace tfctr {

class BlockMemory {
 public:
  BlockMemory() = default;
  BlockMemory(BlockMemory&& from) noexcept
      : blocks_(std::move(from.blocks_)),
        next_(std::exchange(from.next_, nullptr)),
        left_(std::exchange(from.left_, 0)) {}
  BlockMemory& operator=(BlockMemory&& from) noexcept {
    blocks_ = std::move(from.blocks_);
    next_ = std::exchange(from.next_, nullptr);
    left_ = std::exchange(from.left_, 0);
    return *this;
  }

  // `bytes` uninitialised bytes, aligned for any number; valid as long as this object, wherever it is moved to.
  char* Take(size_t bytes) {
    const size_t need = (bytes + kAlign - 1) / kAlign * kAlign;
    if (need > left_) {
      const size_t block = std::max(need, kBlock);
      blocks_.push_back(std::unique_ptr<char[]>(new char[block]));
      if (need >= kBlock) return blocks_.back().get();  // of its own; the block in use stays in use
      next_ = blocks_.back().get();
      left_ = block;
    }
    char* taken = next_;
    next_ += need;
    left_ -= need;
    return taken;
  }

  // Keeps what was taken from `from` as long as this object.
  void TakeOver(BlockMemory&& from) {
    for (auto& block : from.blocks_) blocks_.push_back(std::move(block));
    from = BlockMemory();
  }

  template <typename T>
  T* TakeArray(size_t count) {
    return reinterpret_cast<T*>(Take(count * sizeof(T)));
  }

 private:
  static constexpr size_t kAlign = 16;
  static constexpr size_t kBlock = size_t{1} << 16;

  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_WIRE_BLOCK_MEMORY_H_
