// Memory of one thread that runs lookups; grown when needed and reused, so that nothing is allocated per feature.
// Internal to runner*.cc. Thread-safety: thread_local by construction.
#ifndef TFCTR_CORE_LOOKUP_SCRATCH_H_
#define TFCTR_CORE_LOOKUP_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tfctr/core/lookup/fused_lookup.h"
#include "tfctr/core/lookup/id_steps.h"

namespace tfctr {

// A growing array whose elements are not initialised; its memory is kept.
template <typename T>
class Pile {
 public:
  T* Grow(size_t more) {
    if (size_ + more > memory_.size()) memory_.resize((size_ + more) * 2);
    T* at = memory_.data() + size_;
    size_ += more;
    return at;
  }
  void Shrink(size_t size) { size_ = size; }
  T* data() { return memory_.data(); }
  size_t size() const { return size_; }
  size_t capacity_bytes() const { return memory_.size() * sizeof(T); }
  void Release() {
    memory_ = std::vector<T>();
    size_ = 0;
  }

 private:
  std::vector<T> memory_;
  size_t size_ = 0;
};

// One value on its way through the general path.
struct Entry {
  int64_t id;
  int64_t source;  // index of the raw value
  int64_t row;     // of the output
  double weight;
  bool masked;
};

// One resolved block: what the gather kernels need of it.
struct ListedBlock {
  int32_t feature = -1;  // -1: none
  int64_t row_begin = 0;
  int64_t rows = 0;
  Pile<const uint8_t*> list;
  Pile<int64_t> counts;
  Pile<double> weights;   // float or double numbers
  Pile<double> divisors;  // the same

  void Clear() {
    feature = -1;
    list.Shrink(0);
    counts.Shrink(0);
    weights.Shrink(0);
    divisors.Shrink(0);
  }
};

struct Scratch {
  ListedBlock blocks[2];  // one is being listed while the rows of the other are on their way into the cache
  IdBlock ids;
  std::vector<Entry> entries;
  std::vector<int64_t> numbers;  // of the entries
  std::vector<uint8_t> clipped;

  // The careful path may have taken memory for a whole feature: gives it back when it is much.
  void ReleaseIfLarge() {
    constexpr size_t kKeepBytes = 8 << 20;
    for (ListedBlock& block : blocks) {
      if (block.list.capacity_bytes() > kKeepBytes) block.list.Release();
      if (block.counts.capacity_bytes() > kKeepBytes) block.counts.Release();
      if (block.weights.capacity_bytes() > kKeepBytes) block.weights.Release();
      if (block.divisors.capacity_bytes() > kKeepBytes) block.divisors.Release();
    }
    if (entries.capacity() * sizeof(Entry) > kKeepBytes) std::vector<Entry>().swap(entries);
    if (numbers.capacity() * sizeof(int64_t) > kKeepBytes) std::vector<int64_t>().swap(numbers);
    if (clipped.capacity() > kKeepBytes) std::vector<uint8_t>().swap(clipped);
  }

  static Scratch& OfThread() {
    static thread_local Scratch scratch;
    return scratch;
  }
};

// Row number of the i-th value of a sparse or segments lookup.
struct RowReader {
  explicit RowReader(const BoundFeature& b)
      : wide(b.rows.dtype == DType::kInt64), stride(b.rows.rank == 2 ? b.rows.dims[1] : 1), view(b.rows) {
    if (stride > 2) dims = b.shape.data == nullptr ? nullptr : &b.shape;
  }
  int64_t operator()(int64_t i) const {
    if (!wide) return static_cast<const int32_t*>(view.data)[i];
    const int64_t* index = static_cast<const int64_t*>(view.data) + i * stride;
    if (dims == nullptr) return index[0];
    // As SparseReshape to [rows, last]: one number over all dimensions, divided by the last.
    uint64_t flat = 0;
    for (int64_t d = 0; d < stride; ++d) {
      flat = flat * static_cast<uint64_t>(Dim(d)) + static_cast<uint64_t>(index[d]);
    }
    return static_cast<int64_t>(flat) / Dim(stride - 1);
  }
  int64_t Dim(int64_t d) const {
    return dims->dtype == DType::kInt32 ? static_cast<const int32_t*>(dims->data)[d]
                                        : static_cast<const int64_t*>(dims->data)[d];
  }

  bool wide;
  int64_t stride;
  const TensorView& view;
  const TensorView* dims = nullptr;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_SCRATCH_H_
