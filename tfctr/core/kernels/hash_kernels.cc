// TfctrHashLookup's kernel: rows of a hash file by key, with its overlay. It stands in graphs as the plain form of what
// TfctrFusedLookup does with the steps and combiners around it, and is what that is proven against.
//
// Work is cut into blocks of 256 keys, which are found (index lines are fetched ahead) and then copied or widened into
// the output, while their rows are on their way into the cache.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tfctr/core/kernels/store_resource.h"
#include "tfctr/core/lookup/gather.h"
#include "tfctr/core/lookup/row_format.h"
#include "tfctr/core/profiling/step_record.h"
#include "tfctr/core/storage/isa.h"
#include "tfctr/core/storage/served_table.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kBlock = 256;
constexpr int64_t kCyclesPerKey = 100;

class HashLookupOp : public OpKernel {
 public:
  explicit HashLookupOp(OpKernelConstruction* context) : OpKernel(context), store_(context) {
    std::string storage;
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(context, context->GetAttr("storage", &storage));
    storage_ = DTypeFromName(storage);
    format_ = RowFormatOf(DType::kFloat32, storage_);
    const Result<Isa> isa = ActiveIsa();
    OP_REQUIRES_OK(context, ToTensorFlow(isa.status()));
    kernels_ = &KernelsFor(isa.value());
  }

  void Compute(OpKernelContext* context) override {
    const StepTimer timer(StepPart::kLookup);
    std::shared_ptr<const OpenedFiles> files;
    OP_REQUIRES_OK(context, store_.Files(context, 0, &files));
    const ServedTable* table = nullptr;
    OP_REQUIRES_OK(context, HashAt(*files, index_, &table));
    OP_REQUIRES(context, table->hash()->dim() == dim_ && table->hash()->storage() == storage_,
                absl::InvalidArgumentError("hash file '" + table->name() + "' in '" + table->path() + "' has rows of " +
                                           std::to_string(table->hash()->dim()) + " numbers stored as " +
                                           DTypeName(table->hash()->storage()) + ", expected " + std::to_string(dim_) +
                                           " stored as " + DTypeName(storage_)));
    const Tensor& keys = context->input(1);
    TensorShape shape = keys.shape();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(dim_));
    Tensor* rows = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &rows));
    const int64_t* from = keys.flat<int64_t>().data();
    float* to = rows->flat<float>().data();
    std::atomic<int64_t> missing{0};
    const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(workers.num_threads, workers.workers, keys.NumElements(), kCyclesPerKey + dim_,
                      [&](int64_t begin, int64_t end) {
                        const int64_t unknown =
                            Gather(*table, from + begin, end - begin, to + begin * dim_, timer.record() != nullptr);
                        if (unknown > 0) missing.fetch_add(unknown, std::memory_order_relaxed);
                      });
    if (timer.record() != nullptr) {
      timer.record()->AddTable(StepRecord::TableNumber(table->name()), keys.NumElements(), missing.load());
    }
  }

 private:
  // Returns, if `counting`, how many of the keys the table does not have.
  int64_t Gather(const ServedTable& table, const int64_t* keys, int64_t n, float* out, bool counting) const {
    int64_t missing = 0;
    int64_t numbers[kBlock];
    const uint8_t* list[kBlock];
    CopyTask task;
    task.list = list;
    task.width = dim_;
    task.row_bytes = dim_ * static_cast<int64_t>(sizeof(float));
    task.out_stride = task.row_bytes;
    for (int64_t at = 0; at < n; at += kBlock) {
      task.entries = std::min(kBlock, n - at);
      table.Find(keys + at, static_cast<size_t>(task.entries), numbers);
      if (counting) missing += std::count(numbers, numbers + task.entries, table.index()->missing);
      for (int64_t k = 0; k < task.entries; ++k) {
        list[k] = table.data() + numbers[k] * table.row_bytes();
        PrefetchRow(list[k], table.row_bytes());
      }
      task.out = reinterpret_cast<uint8_t*>(out + at * dim_);
      kernels_->copy(format_, task);
    }
    return missing;
  }

  const StoreReader store_;
  int64_t index_ = 0;
  int64_t dim_ = 0;
  DType storage_ = DType::kInvalid;
  RowFormat format_ = RowFormat::kInvalid;
  const GatherKernels* kernels_ = nullptr;
};

REGISTER_KERNEL_BUILDER(Name("TfctrHashLookup").Device(tensorflow::DEVICE_CPU), HashLookupOp);

}  // namespace
}  // namespace tfctr
