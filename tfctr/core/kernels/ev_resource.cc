#include "tfctr/core/kernels/ev_resource.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tfctr/core/kernels/store_resource.h"

namespace tfctr {
struct KeptScratch {
  std::mutex mutex;
  std::vector<std::unique_ptr<SumScratch::Memory>> free;  // guarded by mutex

  static KeptScratch& Of() {
    static KeptScratch* const kept = new KeptScratch;  // never destroyed: ops may run while the process ends
    return *kept;
  }
};

namespace {

// Blocks of work that a caller and threads of the pool take from one counter. The caller does what nobody has begun and
// waits for begun blocks only. So it may hold what other threads of the pool wait for (locks of a table, a guard): they
// can't keep it from going on, as they would where it waits for its turn in the pool's queue (tensorflow::Shard).
class SharedBlocks {
 public:
  SharedBlocks(const std::function<void(int64_t, int64_t)>& work, int64_t total, int64_t blocks)
      : work_(&work), total_(total), blocks_(blocks) {}

  void Run() {
    for (int64_t i = next_.fetch_add(1); i < blocks_; i = next_.fetch_add(1)) {
      (*work_)(total_* i / blocks_, total_ * (i + 1) / blocks_);  // the caller waits for us: *work_ lives
      std::lock_guard<std::mutex> lock(mutex_);
      if (++done_ == blocks_) all_done_.notify_one();
    }
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == blocks_; });
  }

 private:
  const std::function<void(int64_t, int64_t)>* const work_;
  const int64_t total_;
  const int64_t blocks_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
  int64_t done_ = 0;
};

}  // namespace

absl::Status EvResource::Create(const std::string& config_text, EvResource** created) {
  Result<EvConfig> config = ParseEvConfig(config_text);
  if (!config.ok()) return ToTensorFlow(config.status());
  Result<std::shared_ptr<EmbeddingTable>> table = MakeTable(config.value());
  if (!table.ok()) return ToTensorFlow(table.status());
  *created = new EvResource(config.Take(), config_text, table.Take());
  return absl::OkStatus();
}

std::string EvResource::DebugString() const {
  const std::shared_ptr<EmbeddingTable> table = this->table();
  return absl::StrCat("embedding variable '", name(), "': ", table->size(), " rows of ", config_.dim, " floats, ",
                      table->bytes(), " bytes");
}

int64_t EvResource::MemoryUsed() const { return static_cast<int64_t>(table()->bytes()); }

Now EvResource::NowAt(int64_t step) const {
  int64_t time_ms = clock_ms_.load(std::memory_order_relaxed);
  if (time_ms < 0) {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    time_ms = std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  }
  return {step, time_ms};
}

Status EvResource::Evict(Now now, bool dry_run, EvictionResult* result) const {
  const std::shared_ptr<EmbeddingTable> table = this->table();
  return ::tfctr::Evict(table.get(), config_.eviction, now, dry_run, result);
}

Status EvResource::EvictIfDue(Now now) {
  if (config_.evict_every_steps <= 0) return Status::Ok();
  const int64_t period = now.step / config_.evict_every_steps;
  int64_t before = periods_.load(std::memory_order_relaxed);
  do {
    if (period <= before) return Status::Ok();
  } while (!periods_.compare_exchange_weak(before, period, std::memory_order_relaxed));
  const bool first = before < 0;  // step that is seen: after a start or a restore
  if (first && (now.step == 0 || now.step % config_.evict_every_steps != 0)) return Status::Ok();
  EvictionResult result;
  return Evict(now, /*dry_run=*/false, &result);
}

SumScratch::SumScratch() {
  KeptScratch& kept = KeptScratch::Of();
  std::lock_guard<std::mutex> lock(kept.mutex);
  if (kept.free.empty()) {
    kept_ = std::make_unique<Memory>();
  } else {
    kept_ = std::move(kept.free.back());
    kept.free.pop_back();
  }
}

SumScratch::~SumScratch() {
  KeptScratch& kept = KeptScratch::Of();
  std::lock_guard<std::mutex> lock(kept.mutex);
  kept.free.push_back(std::move(kept_));
}

float* SumScratch::Floats(size_t n) {
  if (kept_->size < n) {
    kept_->floats.reset(new float[n]);
    kept_->size = n;
  }
  return kept_->floats.get();
}

absl::Status GetEv(tensorflow::OpKernelContext* context, int input, tensorflow::core::RefCountPtr<EvResource>* ev) {
  const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context, input);
  absl::Status status = tensorflow::LookupResource(context, handle, ev);
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError(absl::StrCat("the embedding variable behind handle '", handle.name(), "' (input ", input,
                                          " of ", context->op_kernel().type_string(),
                                          ") does not exist any more: it was deleted, the process that held it was "
                                          "restarted, or nothing holds what tf.saved_model.load returned (its "
                                          "functions alone do not keep it)"));
}

void RunSharded(tensorflow::OpKernelContext* context, int64_t total, int64_t cycles,
                const std::function<void(int64_t, int64_t)>& work) {
  constexpr int64_t kBlockCycles = 20000;  // below that a thread costs more than it brings
  constexpr int64_t kBlocksPerThread = 4;
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  const int64_t threads = workers.num_threads;
  const int64_t worth = std::max<int64_t>(1, total * std::min(cycles, kBlockCycles) / kBlockCycles);
  const int64_t blocks = std::min({total, threads * kBlocksPerThread, worth});
  if (threads < 2 || blocks < 2) {
    if (total > 0) work(0, total);
    return;
  }
  const auto shared = std::make_shared<SharedBlocks>(work, total, blocks);
  for (int64_t i = 1; i < std::min(threads, blocks); ++i) workers.workers->Schedule([shared] { shared->Run(); });
  shared->Run();
  shared->Wait();
}

Parallel OnThreads(tensorflow::OpKernelContext* context) {
  return [context](size_t tasks, const std::function<void(size_t)>& task) {
    constexpr int64_t kTaskCycles = 100000;
    RunSharded(context, static_cast<int64_t>(tasks), kTaskCycles, [&task](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) task(static_cast<size_t>(i));
    });
  };
}

}  // namespace tfctr
