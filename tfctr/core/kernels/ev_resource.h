// The resource behind TfctrEvHandle: one embedding variable of a session or eager context. It holds the table, which a
// restore exchanges for another one, its configuration and its clock.
//
// Thread-safety: every method may be called from any thread. An op that took table() keeps that table until it ends,
// whatever is swapped in meanwhile. Cost: table() takes a shared lock for the copy of one pointer.
#ifndef TFCTR_CORE_KERNELS_EV_RESOURCE_H_
#define TFCTR_CORE_KERNELS_EV_RESOURCE_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tfctr/core/embedding/config.h"
#include "tfctr/core/embedding/eviction.h"
#include "tfctr/core/embedding/gradient_sum.h"
#include "tfctr/core/storage/embedding_table.h"
#include "tfctr/core/storage/now.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

class EvResource : public tensorflow::ResourceBase {
 public:
  // InvalidArgument for a config that is wrong, ResourceExhausted where it asks for more than it may have.
  static absl::Status Create(const std::string& config_text, EvResource** created);

  std::string DebugString() const override;
  int64_t MemoryUsed() const override;

  const std::string& name() const { return config_.name; }
  const EvConfig& config() const { return config_; }
  const std::string& config_text() const { return config_text_; }

  std::shared_ptr<EmbeddingTable> table() const {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    return table_;
  }
  // The table must have the layout of this config.
  void Swap(std::shared_ptr<EmbeddingTable> table) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    table_.swap(table);
    periods_.store(-1, std::memory_order_relaxed);  // the new contents may be of an earlier step
  }

  // `step` at the time of the variable's clock: the one that was set, else the system's.
  Now NowAt(int64_t step) const;
  void SetClock(int64_t time_ms) { clock_ms_.store(time_ms, std::memory_order_relaxed); }

  // Frozen: training lookups only look, updates are refused. Here and not in Python, so that it holds for graphs and
  // functions that were made before.
  bool frozen() const { return frozen_.load(std::memory_order_relaxed); }
  void SetFrozen(bool frozen) { frozen_.store(frozen, std::memory_order_relaxed); }

  // Runs the config's rules.
  Status Evict(Now now, bool dry_run, EvictionResult* result) const;
  // Runs them if `evict_every_steps` steps have passed; one of the threads that notice it does.
  Status EvictIfDue(Now now);

 private:
  EvResource(EvConfig config, std::string config_text, std::shared_ptr<EmbeddingTable> table)
      : config_(std::move(config)), config_text_(std::move(config_text)), table_(std::move(table)) {}

  const EvConfig config_;
  const std::string config_text_;
  mutable std::shared_mutex mutex_;
  std::shared_ptr<EmbeddingTable> table_;  // guarded by mutex_
  std::atomic<int64_t> clock_ms_{-1};
  std::atomic<bool> frozen_{false};
  std::atomic<int64_t> periods_{-1};  // evict_every_steps: of the newest step that was applied; -1: none yet
};

// Scratch memory for summing one table's gradients. The process keeps what was used, for the next: the one that was
// returned last is taken first, so that many small tables in turn use memory that is in the cache.
class SumScratch {
 public:
  SumScratch();
  ~SumScratch();
  SumScratch(const SumScratch&) = delete;
  SumScratch& operator=(const SumScratch&) = delete;
  GradientSum& sum() { return kept_->sum; }
  // At least n floats, with any contents.
  float* Floats(size_t n);

 private:
  friend struct KeptScratch;
  struct Memory {
    GradientSum sum;
    std::unique_ptr<float[]> floats;
    size_t size = 0;
  };
  std::unique_ptr<Memory> kept_;
};

// The variable behind input number `input`. NotFound, saying which, when it is gone.
absl::Status GetEv(tensorflow::OpKernelContext* context, int input, tensorflow::core::RefCountPtr<EvResource>* ev);

// Input number `input`, which must be a scalar.
template <typename T>
absl::Status GetScalar(tensorflow::OpKernelContext* context, int input, const char* what, T* value) {
  const tensorflow::Tensor& tensor = context->input(input);
  if (tensor.dims() != 0) {
    return absl::InvalidArgumentError(context->op_kernel().type_string() + ": " + what +
                                      " must be a scalar, got shape " + tensor.shape().DebugString());
  }
  *value = tensor.scalar<T>()();
  return absl::OkStatus();
}

// Runs work(begin, end) over [0, total) on the calling thread and idle intra-op threads; `cycles` is the cost of one.
// The caller may hold locks and guards that the pool's other work waits for, unless `work` takes them too.
void RunSharded(tensorflow::OpKernelContext* context, int64_t total, int64_t cycles,
                const std::function<void(int64_t, int64_t)>& work);

// The same as the storage library takes it.
Parallel OnThreads(tensorflow::OpKernelContext* context);

}  // namespace tfctr

#endif  // TFCTR_CORE_KERNELS_EV_RESOURCE_H_
