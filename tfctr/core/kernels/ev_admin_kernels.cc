// Kernels of the administration of embedding variables: sizes, counts, erase, evict, reserve, clock, freeze; and of
// TfctrEvRowSplits, which needs no variable.
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/kernels/ev_resource.h"
#include "tfctr/core/kernels/store_resource.h"
#include "tfctr/core/storage/relaxed.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status SetScalar(OpKernelContext* context, int output, uint64_t value) {
  Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(output, TensorShape({}), &tensor));
  tensor->scalar<int64_t>()() = static_cast<int64_t>(value);
  return absl::OkStatus();
}

// An op on one variable, input 0.
class EvOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) final {
    tensorflow::core::RefCountPtr<EvResource> ev;
    OP_REQUIRES_OK(context, GetEv(context, 0, &ev));
    OP_REQUIRES_OK(context, Run(context, ev.get()));
  }

 protected:
  virtual absl::Status Run(OpKernelContext* context, EvResource* ev) = 0;
};

class EvSizeOp : public EvOp {
 public:
  using EvOp::EvOp;
  absl::Status Run(OpKernelContext* context, EvResource* ev) override {
    const std::shared_ptr<EmbeddingTable> table = ev->table();
    const std::shared_ptr<Admission>& admission = table->admission();
    TF_RETURN_IF_ERROR(SetScalar(context, 0, table->size()));
    TF_RETURN_IF_ERROR(SetScalar(context, 1, admission == nullptr ? 0 : admission->size()));
    return SetScalar(context, 2, table->bytes());
  }
};

// One output per key, computed block by block on the intra-op threads.
template <typename T>
class EvKeysOp : public EvOp {
 public:
  using EvOp::EvOp;
  absl::Status Run(OpKernelContext* context, EvResource* ev) override {
    const std::shared_ptr<EmbeddingTable> table = ev->table();
    TF_RETURN_IF_ERROR(Check(*ev, *table));
    const Tensor& keys = context->input(1);
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, keys.shape(), &output));
    const int64_t* at = keys.flat<int64_t>().data();
    T* out = output->flat<T>().data();
    constexpr int64_t kCyclesPerKey = 150;
    RunSharded(context, keys.NumElements(), kCyclesPerKey, [&](int64_t begin, int64_t end) {
      const ReadGuard guard(*table);
      float* rows[EmbeddingTable::kFindBlock];
      for (int64_t block = begin; block < end; block += EmbeddingTable::kFindBlock) {
        const int64_t n = std::min<int64_t>(EmbeddingTable::kFindBlock, end - block);
        table->Find(at + block, static_cast<size_t>(n), rows);
        for (int64_t i = 0; i < n; ++i) out[block + i] = Value(*table, at[block + i], rows[i]);
      }
    });
    return absl::OkStatus();
  }

 protected:
  virtual absl::Status Check(const EvResource& ev, const EmbeddingTable& table) const { return absl::OkStatus(); }
  virtual T Value(const EmbeddingTable& table, int64_t key, const float* row) const = 0;
};

class EvContainsOp : public EvKeysOp<bool> {
 public:
  using EvKeysOp::EvKeysOp;
  bool Value(const EmbeddingTable& table, int64_t key, const float* row) const override { return row != nullptr; }
};

class EvFrequencyOp : public EvKeysOp<int64_t> {
 public:
  using EvKeysOp::EvKeysOp;
  absl::Status Check(const EvResource& ev, const EmbeddingTable& table) const override {
    if (table.layout().has_frequency()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("embedding variable '", ev.name(),
                     "' keeps no frequencies: no policy of it needs them, and they were not asked for"));
  }
  int64_t Value(const EmbeddingTable& table, int64_t key, const float* row) const override {
    if (row != nullptr) return LoadRelaxed(table.layout().frequency(row));
    return table.admission() == nullptr ? 0 : table.admission()->Count(key);
  }
};

class EvEraseOp : public EvOp {
 public:
  using EvOp::EvOp;
  absl::Status Run(OpKernelContext* context, EvResource* ev) override {
    const std::shared_ptr<EmbeddingTable> table = ev->table();
    const Tensor& keys = context->input(1);
    const int64_t* at = keys.flat<int64_t>().data();
    const size_t n = static_cast<size_t>(keys.NumElements());
    const size_t erased = table->EraseIf(at, n, [](int64_t, const float*) { return true; });
    if (table->admission() != nullptr) table->admission()->EraseIf(at, n, [](const KeyCount&) { return true; });
    return SetScalar(context, 0, erased);
  }
};

class EvEvictOp : public EvOp {
 public:
  using EvOp::EvOp;
  absl::Status Run(OpKernelContext* context, EvResource* ev) override {
    int64_t step = 0;
    bool dry_run = false;
    TF_RETURN_IF_ERROR(GetScalar(context, 1, "step", &step));
    TF_RETURN_IF_ERROR(GetScalar(context, 2, "dry_run", &dry_run));
    EvictionResult result;
    TF_RETURN_IF_ERROR(ToTensorFlow(ev->Evict(ev->NowAt(step), dry_run, &result)));
    TF_RETURN_IF_ERROR(SetScalar(context, 0, result.total.rows));
    TF_RETURN_IF_ERROR(SetScalar(context, 1, result.total.counters));
    TF_RETURN_IF_ERROR(SetScalar(context, 2, result.total.bytes));
    uint64_t EvictionCount::* const columns[] = {&EvictionCount::rows, &EvictionCount::counters, &EvictionCount::bytes};
    for (int column = 0; column < 3; ++column) {
      Tensor* rules = nullptr;
      TF_RETURN_IF_ERROR(
          context->allocate_output(3 + column, TensorShape({static_cast<int64_t>(result.per_rule.size())}), &rules));
      for (size_t i = 0; i < result.per_rule.size(); ++i) {
        rules->flat<int64_t>()(i) = static_cast<int64_t>(result.per_rule[i].*columns[column]);
      }
    }
    return absl::OkStatus();
  }
};

class EvMarkOp : public EvOp {
 public:
  using EvOp::EvOp;
  absl::Status Run(OpKernelContext* context, EvResource* ev) override {
    const std::shared_ptr<EmbeddingTable> table = ev->table();
    const int64_t mark = table->layout().has_change() ? static_cast<int64_t>(table->EndMark()) : -1;
    TF_RETURN_IF_ERROR(SetScalar(context, 0, static_cast<uint64_t>(table->instance())));
    TF_RETURN_IF_ERROR(SetScalar(context, 1, static_cast<uint64_t>(mark)));
    Tensor* origin = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(2, TensorShape({}), &origin));
    origin->scalar<tensorflow::tstring>()() = table->origin();
    return absl::OkStatus();
  }
};

class EvReserveOp : public EvOp {
 public:
  using EvOp::EvOp;
  absl::Status Run(OpKernelContext* context, EvResource* ev) override {
    int64_t rows = 0;
    TF_RETURN_IF_ERROR(GetScalar(context, 1, "rows", &rows));
    if (rows < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("embedding variable '", ev->name(), "': room for ", rows, " rows, expected 0 or more"));
    }
    return ToTensorFlow(ev->table()->Reserve(static_cast<uint64_t>(rows)));
  }
};

class EvSetClockOp : public EvOp {
 public:
  using EvOp::EvOp;
  absl::Status Run(OpKernelContext* context, EvResource* ev) override {
    int64_t time_ms = 0;
    TF_RETURN_IF_ERROR(GetScalar(context, 1, "time_ms", &time_ms));
    if (time_ms < -1) {
      return absl::InvalidArgumentError(
          absl::StrCat("embedding variable '", ev->name(), "': time_ms is ", time_ms, ", expected -1 or more"));
    }
    ev->SetClock(time_ms);
    return absl::OkStatus();
  }
};

class EvSetFrozenOp : public EvOp {
 public:
  using EvOp::EvOp;
  absl::Status Run(OpKernelContext* context, EvResource* ev) override {
    bool frozen = false;
    TF_RETURN_IF_ERROR(GetScalar(context, 1, "frozen", &frozen));
    ev->SetFrozen(frozen);
    return absl::OkStatus();
  }
};

class EvRowSplitsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& indices = context->input(0);
    const Tensor& dense_shape = context->input(1);
    OP_REQUIRES(context,
                indices.dims() == 2 && dense_shape.dims() == 1 && dense_shape.NumElements() >= 1 &&
                    indices.dim_size(1) == dense_shape.NumElements(),
                absl::InvalidArgumentError(absl::StrCat(
                    "sparse ids: indices have shape ", indices.shape().DebugString(), " and dense_shape has shape ",
                    dense_shape.shape().DebugString(), ", expected [values, rank] and [rank]")));
    const int64_t rows = dense_shape.flat<int64_t>()(0);
    OP_REQUIRES(context, rows >= 0 && rows < std::numeric_limits<int64_t>::max(),
                absl::InvalidArgumentError(absl::StrCat("sparse ids: dense_shape says ", rows, " rows")));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows + 1}), &output));
    OP_REQUIRES_OK(context, Fill(indices, rows, output->flat<int64_t>().data()));
  }

 private:
  static absl::Status Fill(const Tensor& indices, int64_t rows, int64_t* splits) {
    const int64_t n = indices.dim_size(0);
    const int64_t rank = indices.dim_size(1);
    const int64_t* at = indices.flat<int64_t>().data();
    int64_t row = 0;  // the next whose split is to be written
    splits[row] = 0;
    int64_t before = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t mine = at[i * rank];
      if (mine < 0 || mine >= rows) {
        return absl::InvalidArgumentError(
            absl::StrCat("sparse ids: value ", i, " is in row ", mine, ", but there are ", rows, " rows"));
      }
      if (mine < before) {
        return absl::InvalidArgumentError(absl::StrCat("sparse ids: value ", i, " is in row ", mine,
                                                       ", after one in row ", before,
                                                       ": rows must be in order (tf.sparse.reorder)"));
      }
      while (row < mine) splits[++row] = i;
      before = mine;
    }
    while (row < rows) splits[++row] = n;
    return absl::OkStatus();
  }
};

#define TFCTR_REGISTER_EV(name, kernel) REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), kernel)
TFCTR_REGISTER_EV("TfctrEvSize", EvSizeOp);
TFCTR_REGISTER_EV("TfctrEvContains", EvContainsOp);
TFCTR_REGISTER_EV("TfctrEvFrequency", EvFrequencyOp);
TFCTR_REGISTER_EV("TfctrEvErase", EvEraseOp);
TFCTR_REGISTER_EV("TfctrEvEvict", EvEvictOp);
TFCTR_REGISTER_EV("TfctrEvMark", EvMarkOp);
TFCTR_REGISTER_EV("TfctrEvReserve", EvReserveOp);
TFCTR_REGISTER_EV("TfctrEvSetClock", EvSetClockOp);
TFCTR_REGISTER_EV("TfctrEvSetFrozen", EvSetFrozenOp);
TFCTR_REGISTER_EV("TfctrEvRowSplits", EvRowSplitsOp);
#undef TFCTR_REGISTER_EV

}  // namespace
}  // namespace tfctr
