// TfctrEvImport and TfctrEvImportCounters: rows and counts from tensors into a table.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tfctr/core/kernels/ev_bundle.h"
#include "tfctr/core/kernels/ev_resource.h"
#include "tfctr/core/kernels/store_resource.h"

namespace tfctr {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status CheckShape(const EvResource& variable, const std::string& what, const Tensor& tensor,
                        const TensorShape& expected, bool may_be_empty = false) {
  if (tensor.shape() == expected || (may_be_empty && tensor.dims() == 1 && tensor.NumElements() == 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("import into embedding variable '", variable.name(), "': ", what,
                                                 " has shape ", tensor.shape().DebugString(), ", expected ",
                                                 expected.DebugString(), may_be_empty ? " or [0]" : ""));
}

absl::Status CheckFinite(const EvResource& variable, const std::string& what, const Tensor& tensor,
                         const int64_t* keys) {
  const float* floats = tensor.flat<float>().data();
  const int64_t n = tensor.NumElements();
  for (int64_t i = 0; i < n; ++i) {
    if (std::isfinite(floats[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat("import into embedding variable '", variable.name(), "': ", what,
                                                   " of key ", keys[i / tensor.dim_size(1)], " holds ", floats[i],
                                                   ", expected finite numbers; no row was changed"));
  }
  return absl::OkStatus();
}

class EvImportOp : public OpKernel {
 public:
  explicit EvImportOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("K", &count_));
    OP_REQUIRES_OK(context, context->GetAttr("slot_names", &slot_names_));
    OP_REQUIRES_OK(context, context->GetAttr("replace", &replace_));
    OP_REQUIRES(context, static_cast<int>(slot_names_.size()) == count_,
                absl::InvalidArgumentError(absl::StrCat("TfctrEvImport: K is ", count_, ", but there are ",
                                                        slot_names_.size(), " slot_names")));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<EvResource> variable;
    int64_t step = 0;
    OP_REQUIRES_OK(context, GetEv(context, 0, &variable));
    OP_REQUIRES_OK(context, GetScalar(context, 1, "step", &step));
    std::shared_ptr<EmbeddingTable> table = variable->table();
    RowColumns columns;
    OP_REQUIRES_OK(context, Check(context, *variable, table->layout(), &columns));
    const int64_t n = context->input(2).NumElements();
    std::vector<uint32_t> frequency;
    std::vector<int64_t> steps;
    std::vector<int64_t> times;
    Metadata(context, *variable, step, &frequency, &steps, &times, &columns);
    if (replace_) {
      Result<std::shared_ptr<EmbeddingTable>> made = MakeTable(variable->config());
      OP_REQUIRES(context, made.ok(), ToTensorFlow(made.status()));
      table = made.Take();
    }
    const Status put =
        table->Put(context->input(2).flat<int64_t>().data(), static_cast<size_t>(n), columns, OnThreads(context));
    OP_REQUIRES(context, put.ok(), ToTensorFlow(put));
    if (replace_) variable->Swap(std::move(table));
  }

 private:
  const Tensor& After(OpKernelContext* context, int i) const { return context->input(4 + count_ + i); }

  absl::Status Check(OpKernelContext* context, const EvResource& variable, const RowLayout& layout,
                     RowColumns* columns) const {
    const Tensor& keys = context->input(2);
    const int64_t n = keys.NumElements();
    TF_RETURN_IF_ERROR(CheckShape(variable, "keys", keys, TensorShape({n})));
    TF_RETURN_IF_ERROR(CheckShape(variable, "values", context->input(3), TensorShape({n, layout.dim()})));
    TF_RETURN_IF_ERROR(CheckFinite(variable, "the value", context->input(3), keys.flat<int64_t>().data()));
    columns->values = context->input(3).flat<float>().data();
    columns->slots.assign(layout.slots().size(), nullptr);
    for (int i = 0; i < count_; ++i) {
      const std::string& name = slot_names_[static_cast<size_t>(i)];
      const auto& all = layout.slots();
      const auto found = std::find_if(all.begin(), all.end(), [&](const SlotSpec& slot) { return slot.name == name; });
      if (found == all.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "import into embedding variable '", variable.name(), "': it has no slot '", name, "', it has: ",
            absl::StrJoin(all, ", ", [](std::string* out, const SlotSpec& slot) { *out += slot.name; })));
      }
      const Tensor& slot = context->input(4 + i);
      const std::string what = absl::StrCat("slot '", name, "'");
      TF_RETURN_IF_ERROR(CheckShape(variable, what, slot, TensorShape({n, found->width})));
      TF_RETURN_IF_ERROR(CheckFinite(variable, what, slot, keys.flat<int64_t>().data()));
      columns->slots[static_cast<size_t>(found - all.begin())] = slot.flat<float>().data();
    }
    const char* names[] = {"frequency", "last_step", "last_time"};
    for (int i = 0; i < 3; ++i) {
      TF_RETURN_IF_ERROR(CheckShape(variable, names[i], After(context, i), TensorShape({n}), /*may_be_empty=*/true));
    }
    return absl::OkStatus();
  }

  // What is not given is as in a row that is inserted now.
  void Metadata(OpKernelContext* context, const EvResource& variable, int64_t step, std::vector<uint32_t>* frequency,
                std::vector<int64_t>* steps, std::vector<int64_t>* times, RowColumns* columns) const {
    const size_t n = static_cast<size_t>(context->input(2).NumElements());
    const Now now = variable.NowAt(step);
    frequency->assign(n, std::max<uint32_t>(1, variable.config().admission.min_count));
    const auto given = After(context, 0).flat<int64_t>();
    for (int64_t i = 0; i < given.size(); ++i) {
      (*frequency)[static_cast<size_t>(i)] =
          static_cast<uint32_t>(std::min<int64_t>(std::max<int64_t>(given(i), 0), UINT32_MAX));
    }
    columns->frequency = frequency->data();
    const auto times_of = [&](int input, int64_t otherwise, std::vector<int64_t>* same) {
      const Tensor& tensor = After(context, input);
      if (tensor.NumElements() > 0) return static_cast<const int64_t*>(tensor.flat<int64_t>().data());
      same->assign(n, otherwise);
      return static_cast<const int64_t*>(same->data());
    };
    columns->last_step = times_of(1, now.step, steps);
    columns->last_time_ms = times_of(2, now.time_ms, times);
  }

  int count_ = 0;
  std::vector<std::string> slot_names_;
  bool replace_ = false;
};

class EvImportCountersOp : public OpKernel {
 public:
  explicit EvImportCountersOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<EvResource> variable;
    int64_t step = 0;
    OP_REQUIRES_OK(context, GetEv(context, 0, &variable));
    OP_REQUIRES_OK(context, GetScalar(context, 1, "step", &step));
    const Now now = variable->NowAt(step);
    const std::shared_ptr<EmbeddingTable> table = variable->table();
    const Tensor& keys = context->input(2);
    const Tensor& bloom = context->input(6);
    const int64_t n = keys.NumElements();
    OP_REQUIRES(context, table->admission() != nullptr || (n == 0 && bloom.NumElements() == 0),
                absl::InvalidArgumentError(absl::StrCat("import of counters into embedding variable '",
                                                        variable->name(), "': it has no admission policy")));
    if (table->admission() == nullptr) return;
    const char* names[] = {"counts", "last_step", "last_time"};
    for (int i = 0; i < 3; ++i) {
      OP_REQUIRES_OK(context, CheckShape(*variable, names[i], context->input(3 + i), TensorShape({n}), i > 0));
    }
    if (bloom.NumElements() > 0) {
      OP_REQUIRES(
          context, table->admission()->config().kind == AdmissionConfig::Kind::kBloom,
          absl::InvalidArgumentError(absl::StrCat("import of counters into embedding variable '", variable->name(),
                                                  "': cells of a Bloom filter came, but it "
                                                  "counts keys one by one")));
      const Status written =
          table->admission()->WriteState(0, static_cast<uint64_t>(bloom.NumElements()), bloom.flat<uint8_t>().data());
      OP_REQUIRES(context, written.ok(), ToTensorFlow(written));
    }
    std::vector<KeyCount> counts;
    const auto of = [&](int input, int64_t i, int64_t otherwise) {
      const Tensor& tensor = context->input(input);
      return tensor.NumElements() > 0 ? tensor.flat<int64_t>()(i) : otherwise;
    };
    for (int64_t i = 0; i < n; ++i) {
      const int64_t count = std::min<int64_t>(context->input(3).flat<int64_t>()(i), UINT32_MAX);
      if (count <= 0) continue;
      counts.push_back(
          {keys.flat<int64_t>()(i), static_cast<uint32_t>(count), of(4, i, now.step), of(5, i, now.time_ms)});
    }
    PutCounts(std::move(counts), now, table.get());
  }
};

REGISTER_KERNEL_BUILDER(Name("TfctrEvImport").Device(tensorflow::DEVICE_CPU), EvImportOp);
REGISTER_KERNEL_BUILDER(Name("TfctrEvImportCounters").Device(tensorflow::DEVICE_CPU), EvImportCountersOp);

}  // namespace
}  // namespace tfctr
