#include "tfctr/core/kernels/ev_resource.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tfctr/core/kernels/store_resource.h"

namespace tfctr {

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

std::unique_ptr<GradientSum> EvResource::TakeScratch() {
  std::lock_guard<std::mutex> lock(scratch_mutex_);
  if (scratch_.empty()) return std::make_unique<GradientSum>();
  std::unique_ptr<GradientSum> sum = std::move(scratch_.back());
  scratch_.pop_back();
  return sum;
}

void EvResource::ReturnScratch(std::unique_ptr<GradientSum> sum) {
  std::lock_guard<std::mutex> lock(scratch_mutex_);
  scratch_.push_back(std::move(sum));
}

absl::Status GetEv(tensorflow::OpKernelContext* context, int input, tensorflow::core::RefCountPtr<EvResource>* ev) {
  const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context, input);
  absl::Status status = tensorflow::LookupResource(context, handle, ev);
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError(absl::StrCat("the embedding variable behind handle '", handle.name(), "' (input ", input,
                                          " of ", context->op_kernel().type_string(),
                                          ") does not exist any more: it was deleted, or the process that held it was "
                                          "restarted"));
}

void RunSharded(tensorflow::OpKernelContext* context, int64_t total, int64_t cycles,
                const std::function<void(int64_t, int64_t)>& work) {
  const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers.num_threads, workers.workers, total, cycles, work);
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
