// TfctrEvApply: one optimizer step of many tables in one op. Tables are updated side by side, each by one thread:
// gradients of equal keys are summed, checked and clipped, then rows are found (prefetched) and updated block by block.
// Where a table has very many keys, the rows of all are spread over the threads in pieces instead.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/embedding/optimizers.h"
#include "tfctr/core/kernels/ev_resource.h"
#include "tfctr/core/kernels/store_resource.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr int64_t kCyclesPerKey = 300;  // its row aside
constexpr size_t kBlock = EmbeddingTable::kFindBlock;
constexpr size_t kTableKeys = 1 << 14;  // a table with more is spread
constexpr size_t kPieceKeys = 1 << 12;

struct Update {
  tensorflow::core::RefCountPtr<EvResource> ev;
  std::shared_ptr<EmbeddingTable> table;
  const int64_t* keys = nullptr;
  const float* grads = nullptr;
  size_t n = 0;
  UpdateStep step;
  Now now;
  std::unique_ptr<SumScratch> scratch;  // from Prepare on

  const GradientSum& sum() const { return scratch->sum(); }
};

class EvApplyOp : public OpKernel {
 public:
  explicit EvApplyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &tables_));
  }

  void Compute(OpKernelContext* context) override {
    int64_t step = 0;
    OP_REQUIRES_OK(context, GetScalar(context, 4 * tables_, "step", &step));
    std::vector<Update> updates(static_cast<size_t>(tables_));
    int64_t cycles = 0;
    for (int i = 0; i < tables_; ++i) {
      Update& update = updates[static_cast<size_t>(i)];
      OP_REQUIRES_OK(context, ReadUpdate(context, i, step, &update));
      cycles += static_cast<int64_t>(update.n) * (kCyclesPerKey + 2 * update.ev->config().dim);
    }
    std::vector<absl::Status> statuses(updates.size());
    const bool spread = std::any_of(updates.begin(), updates.end(), [](const Update& u) { return u.n > kTableKeys; });
    RunSharded(context, tables_, std::max<int64_t>(1, cycles / tables_), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Update& update = updates[i];
        statuses[i] = Prepare(&update);
        if (spread || !statuses[i].ok()) continue;
        Apply(update, 0, update.sum().size());
        update.scratch.reset();  // the next table of this thread takes warm memory
      }
    });
    if (spread) ApplyInPieces(context, updates, statuses);
    for (const absl::Status& status : statuses) OP_REQUIRES_OK(context, status);
    for (Update& update : updates) {
      OP_REQUIRES_OK(context, ToTensorFlow(update.ev->EvictIfDue(update.now)));
    }
  }

 private:
  absl::Status ReadUpdate(OpKernelContext* context, int i, int64_t step, Update* update) const {
    TF_RETURN_IF_ERROR(GetEv(context, i, &update->ev));
    const Tensor& keys = context->input(tables_ + i);
    const Tensor& grads = context->input(2 * tables_ + i);
    const EvConfig& config = update->ev->config();
    if (!config.has_optimizer) {
      return absl::FailedPreconditionError(
          absl::StrCat("embedding variable '", config.name, "' has no optimizer: it can't be updated"));
    }
    if (update->ev->frozen()) {
      return absl::FailedPreconditionError(
          absl::StrCat("embedding variable '", config.name, "' is frozen: it can't be updated"));
    }
    if (keys.dims() != 1 || grads.dims() != 2 || grads.dim_size(0) != keys.dim_size(0) ||
        grads.dim_size(1) != config.dim) {
      return absl::InvalidArgumentError(
          absl::StrCat("update of embedding variable '", config.name, "': keys have shape ", keys.shape().DebugString(),
                       ", gradients ", grads.shape().DebugString(), ", expected [n] and [n, ", config.dim, "]"));
    }
    TF_RETURN_IF_ERROR(GetScalar(context, 3 * tables_ + i, "a learning rate", &update->step.learning_rate));
    update->step.step = step;
    update->now = update->ev->NowAt(step);
    const Status usable = CheckStep(config.optimizer, update->step);
    if (!usable.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("update of embedding variable '", config.name, "': ", usable.message));
    }
    update->keys = keys.flat<int64_t>().data();
    update->grads = grads.flat<float>().data();
    update->n = static_cast<size_t>(keys.NumElements());
    return absl::OkStatus();
  }

  // Sums, checks and clips the gradients.
  static absl::Status Prepare(Update* update) {
    const EvConfig& config = update->ev->config();
    update->scratch = std::make_unique<SumScratch>();
    GradientSum& sum = update->scratch->sum();
    const Status finite = sum.Sum(update->keys, update->n, update->grads, config.dim);
    if (!finite.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("update of embedding variable '", config.name, "': ", finite.message));
    }
    if (config.clip.kind != ClipConfig::Kind::kNone) sum.Clip(config.clip);
    update->table = update->ev->table();
    return absl::OkStatus();
  }

  // What Touch writes: it lies behind the floats, which ApplyRows fetches.
  static void PrefetchEnd(const float* row, size_t stride) {
    if (row != nullptr) __builtin_prefetch(reinterpret_cast<const char*>(row) + stride - 1, 1);
  }

  // Updates the rows of distinct keys [begin, end).
  static void Apply(const Update& update, size_t begin, size_t end) {
    const EvConfig& config = update.ev->config();
    const EmbeddingTable& table = *update.table;
    const RowLayout& layout = table.layout();
    const bool touch = layout.has_last_step() || layout.has_last_time() || layout.has_change();
    const ReadGuard reading(table);
    const UpdateGuard updating(table);
    const uint32_t mark = table.this_mark();
    float* rows[kBlock];
    for (size_t at = begin; at < end; at += kBlock) {
      const size_t n = std::min(kBlock, end - at);
      table.Find(update.sum().keys() + at, n, rows);
      for (size_t i = 0; touch && i < n; ++i) PrefetchEnd(rows[i], layout.stride());
      ApplyRows(config.optimizer, layout, update.step, rows, update.sum().sums() + at * static_cast<size_t>(config.dim),
                n);
      for (size_t i = 0; touch && i < n; ++i) {
        if (rows[i] != nullptr) table.Touch(rows[i], update.now, mark);
      }
    }
  }

  static void ApplyInPieces(OpKernelContext* context, const std::vector<Update>& updates,
                            const std::vector<absl::Status>& statuses) {
    struct Piece {
      const Update* update;
      size_t begin;
      size_t end;
    };
    std::vector<Piece> pieces;
    for (size_t i = 0; i < updates.size(); ++i) {
      const size_t n = statuses[i].ok() ? updates[i].sum().size() : 0;
      for (size_t at = 0; at < n; at += kPieceKeys) pieces.push_back({&updates[i], at, std::min(n, at + kPieceKeys)});
    }
    RunSharded(context, static_cast<int64_t>(pieces.size()), static_cast<int64_t>(kPieceKeys) * kCyclesPerKey,
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = begin; p < end; ++p) Apply(*pieces[p].update, pieces[p].begin, pieces[p].end);
               });
  }

  int tables_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfctrEvApply").Device(tensorflow::DEVICE_CPU), EvApplyOp);

}  // namespace
}  // namespace tfctr
