// TfctrEvLookupGrad: gradients of lookups that are combined or limited, summed per distinct key, and of the weights.
// Lookups are worked on side by side. Rows are read again only where the formula needs them (max_norm, weights).
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/embedding/gradient_sum.h"
#include "tfctr/core/kernels/ev_lookup_spec.h"
#include "tfctr/core/kernels/ev_resource.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int64_t kCyclesPerKey = 150;

class EvLookupGradOp : public OpKernel {
 public:
  explicit EvLookupGradOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("S", &splits_));
    OP_REQUIRES_OK(context, context->GetAttr("W", &weights_));
    OP_REQUIRES_OK(context, ReadLookupSpecs(context, &specs_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<tensorflow::core::RefCountPtr<EvResource>> owned;
    std::vector<EvLookup> lookups;
    OP_REQUIRES_OK(context, ReadLookups(context, specs_, splits_, &owned, &lookups));
    const int tables = static_cast<int>(specs_.size());
    std::vector<float*> weight_grads(static_cast<size_t>(weights_));
    for (int w = 0; w < weights_; ++w) {
      Tensor* grads = nullptr;
      OP_REQUIRES_OK(
          context, context->allocate_output(2 * tables + w, context->input(2 * tables + splits_ + w).shape(), &grads));
      weight_grads[w] = grads->flat<float>().data();
      std::fill_n(weight_grads[w], grads->NumElements(), 0.0f);
    }
    int64_t cycles = 0;
    for (int i = 0; i < tables; ++i) {
      OP_REQUIRES_OK(context, CheckGrads(lookups[i], context->input(2 * tables + splits_ + weights_ + i), i));
      cycles += lookups[i].n * (kCyclesPerKey + 2 * specs_[i].pooling.dim);
    }
    std::vector<absl::Status> statuses(specs_.size());
    std::mutex allocating;  // a context is for one thread at a time
    const auto work = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int w = specs_[i].weights;
        statuses[i] = Sum(context, lookups[i], static_cast<int>(i), w < 0 ? nullptr : weight_grads[w], &allocating);
      }
    };
    // Lookups that share weights add to the same gradients.
    if (SharedWeights()) {
      work(0, tables);
    } else {
      RunSharded(context, tables, std::max<int64_t>(1, cycles / tables), work);
    }
    for (const absl::Status& status : statuses) OP_REQUIRES_OK(context, status);
  }

 private:
  bool SharedWeights() const {
    std::vector<int> uses(static_cast<size_t>(weights_));
    for (const EvLookupSpec& spec : specs_) {
      if (spec.weights >= 0 && ++uses[spec.weights] > 1) return true;
    }
    return false;
  }

  static absl::Status CheckGrads(const EvLookup& lookup, const Tensor& grads, int i) {
    const int64_t wanted = lookup.rows * lookup.spec->pooling.dim;
    if (grads.NumElements() == wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("lookup ", i, " (embedding variable '", lookup.ev->name(),
                                                   "'): gradients have shape ", grads.shape().DebugString(),
                                                   ", expected ", lookup.rows, " rows of ", lookup.spec->pooling.dim));
  }

  absl::Status Sum(OpKernelContext* context, const EvLookup& lookup, int i, float* weight_grads,
                   std::mutex* allocating) const {
    const int tables = static_cast<int>(specs_.size());
    const Pooling& pooling = lookup.spec->pooling;
    const size_t n = static_cast<size_t>(lookup.n);
    const size_t dim = static_cast<size_t>(pooling.dim);
    const float* grads = context->input(2 * tables + splits_ + weights_ + i).flat<float>().data();
    const float* fallback = lookup.table->default_row();
    const ReadGuard guard(*lookup.table);
    std::vector<float*> rows;
    if (pooling.limited() || weight_grads != nullptr) {
      rows.resize(n);
      lookup.table->Find(lookup.keys, n, rows.data());
    }
    SumScratch scratch;
    if (lookup.spec->combined()) {
      float* each = scratch.Floats(n * dim);
      PoolGradient(pooling, lookup.splits, static_cast<size_t>(lookup.rows), rows.data(), lookup.weights, fallback,
                   grads, each, weight_grads);
      grads = each;
    } else if (pooling.limited()) {
      float* each = scratch.Floats(n * dim);
      CopyRowsGradient(pooling, rows.data(), n, fallback, grads, each);
      grads = each;
    }
    GradientSum& sum = scratch.sum();
    // NaN and Inf pass here: what may reach a table is decided where it is updated.
    (void)sum.Sum(lookup.keys, n, grads, pooling.dim);
    const int64_t unique = static_cast<int64_t>(sum.size());
    Tensor* keys = nullptr;
    Tensor* sums = nullptr;
    {
      std::lock_guard<std::mutex> lock(*allocating);
      TF_RETURN_IF_ERROR(context->allocate_output(i, TensorShape({unique}), &keys));
      TF_RETURN_IF_ERROR(context->allocate_output(tables + i, TensorShape({unique, pooling.dim}), &sums));
    }
    std::copy_n(sum.keys(), unique, keys->flat<int64_t>().data());
    std::copy_n(sum.sums(), unique * pooling.dim, sums->flat<float>().data());
    return absl::OkStatus();
  }

  int splits_ = 0;
  int weights_ = 0;
  std::vector<EvLookupSpec> specs_;
};

REGISTER_KERNEL_BUILDER(Name("TfctrEvLookupGrad").Device(tensorflow::DEVICE_CPU), EvLookupGradOp);

}  // namespace
}  // namespace tfctr
