// Sums the gradients of equal keys, so that an optimizer sees every key once, and refuses or clips what must not reach
// a table. One object per table, reused from step to step: its memory grows to the largest batch and stays.
//
// Keys come out in the order of their first occurrence and gradients are added in the order of their occurrences
// (((g1 + g2) + g3) + ...), whatever the instruction set. Any int64 is a key.
// Thread-safety: none, one thread at a time. Cost: about 10 ns a key for finding duplicates in cache plus one pass over
// the gradients; where all keys are distinct the gradients are not copied (until they are clipped).
#ifndef TFCTR_CORE_EMBEDDING_GRADIENT_SUM_H_
#define TFCTR_CORE_EMBEDDING_GRADIENT_SUM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/salt.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct ClipConfig {
  enum class Kind : int {
    kNone,
    kValue,       // every element into [-limit, limit] (Keras clipvalue)
    kNorm,        // every row's L2 norm to at most limit: g * limit / max(norm, limit)
    kGlobalNorm,  // the same with the L2 norm of all rows of this table in this step (Keras clipnorm of one variable)
  };
  Kind kind = Kind::kNone;
  float limit = 0.0f;
};

class TFCTR_EXPORT GradientSum {
 public:
  // `grads` is [n, dim]. keys and grads must stay until the next call of Sum: where all keys are distinct, keys() and
  // sums() are the arrays given. kInvalid, naming the first such key in order of output, where a sum is NaN or Inf;
  // keys() and sums() are valid even then.
  Status Sum(const int64_t* keys, size_t n, const float* grads, int dim);

  // Clips the sums. After Sum, at most once.
  void Clip(const ClipConfig& clip);

  const int64_t* keys() const { return keys_; }
  const float* sums() const { return sums_; }
  size_t size() const { return size_; }
  int dim() const { return dim_; }

 private:
  struct Entry {
    int64_t key;
    uint32_t place;  // in keys()
    uint32_t batch;  // number of the call that wrote the entry; of an older one: empty
  };

  void Number(const int64_t* keys, size_t n);
  void Add(const float* grads, size_t n);

  const int64_t* keys_ = nullptr;
  const float* sums_ = nullptr;
  size_t size_ = 0;
  int dim_ = 0;

  const uint64_t salt_ = NewSalt();
  std::vector<Entry> entries_;
  uint32_t batch_ = 0;
  std::vector<uint32_t> places_;  // of every occurrence
  std::vector<int64_t> own_keys_;
  std::vector<float> own_sums_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_EMBEDDING_GRADIENT_SUM_H_
