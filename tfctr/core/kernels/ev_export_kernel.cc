// TfctrEvExport and TfctrEvExportCounters: rows and counts of a table as tensors.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tfctr/core/kernels/ev_resource.h"
#include "tfctr/core/storage/table_snapshot.h"

namespace tfctr {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Rows [at, at + from.size()) of an output.
template <typename T, typename U>
void CopyTo(const std::vector<T>& from, size_t at, U* to) {
  std::copy(from.begin(), from.end(), to + at);
}

class EvExportOp : public OpKernel {
 public:
  explicit EvExportOp(OpKernelConstruction* context) : OpKernel(context) {
    int count = 0;
    OP_REQUIRES_OK(context, context->GetAttr("K", &count));
    OP_REQUIRES_OK(context, context->GetAttr("slot_names", &slot_names_));
    OP_REQUIRES(context, static_cast<int>(slot_names_.size()) == count,
                absl::InvalidArgumentError(absl::StrCat("TfctrEvExport: K is ", count, ", but there are ",
                                                        slot_names_.size(), " slot_names")));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<EvResource> variable;
    int64_t first = 0;
    int64_t shards = 0;
    OP_REQUIRES_OK(context, GetEv(context, 0, &variable));
    OP_REQUIRES_OK(context, GetScalar(context, 1, "first_shard", &first));
    OP_REQUIRES_OK(context, GetScalar(context, 2, "num_shards", &shards));
    const std::shared_ptr<EmbeddingTable> table = variable->table();
    OP_REQUIRES(
        context, first >= 0 && shards >= -1,
        absl::InvalidArgumentError(absl::StrCat("TfctrEvExport of '", variable->name(), "': first_shard ", first,
                                                " and num_shards ", shards, ", expected >= 0 and >= -1")));
    std::vector<size_t> slots;
    OP_REQUIRES_OK(context, FindSlots(*variable, table->layout(), &slots));
    TableSnapshot snapshot(table);
    first = std::min<int64_t>(first, snapshot.shards());
    const int64_t room = snapshot.shards() - first;
    const int64_t end = first + (shards < 0 ? room : std::min(room, shards));
    OP_REQUIRES_OK(context, Copy(context, table->layout(), slots, &snapshot, first, end));
  }

 private:
  absl::Status FindSlots(const EvResource& variable, const RowLayout& layout, std::vector<size_t>* slots) const {
    for (const std::string& name : slot_names_) {
      const auto& all = layout.slots();
      const auto found = std::find_if(all.begin(), all.end(), [&](const SlotSpec& slot) { return slot.name == name; });
      if (found == all.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("embedding variable '", variable.name(), "' has no slot '", name, "', it has: ",
                         absl::StrJoin(all, ", ", [](std::string* out, const SlotSpec& slot) { *out += slot.name; })));
      }
      slots->push_back(static_cast<size_t>(found - all.begin()));
    }
    return absl::OkStatus();
  }

  absl::Status Copy(OpKernelContext* context, const RowLayout& layout, const std::vector<size_t>& slots,
                    TableSnapshot* snapshot, int64_t first, int64_t end) const {
    int64_t rows = 0;
    for (int64_t shard = first; shard < end; ++shard) {
      rows += static_cast<int64_t>(snapshot->shard_rows(static_cast<int>(shard)));
    }
    const int count = static_cast<int>(slots.size());
    std::vector<Tensor*> outputs(static_cast<size_t>(6 + count));
    const auto allocate = [&](int output, const TensorShape& shape) {
      return context->allocate_output(output, shape, &outputs[static_cast<size_t>(output)]);
    };
    TF_RETURN_IF_ERROR(allocate(0, TensorShape({rows})));
    TF_RETURN_IF_ERROR(allocate(1, TensorShape({rows, layout.dim()})));
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(allocate(2 + i, TensorShape({rows, layout.slots()[slots[static_cast<size_t>(i)]].width})));
    }
    TF_RETURN_IF_ERROR(allocate(2 + count, TensorShape({layout.has_frequency() ? rows : 0})));
    TF_RETURN_IF_ERROR(allocate(3 + count, TensorShape({layout.has_last_step() ? rows : 0})));
    TF_RETURN_IF_ERROR(allocate(4 + count, TensorShape({layout.has_last_time() ? rows : 0})));
    TF_RETURN_IF_ERROR(allocate(5 + count, TensorShape({})));
    outputs.back()->scalar<int64_t>()() = snapshot->shards();
    const auto whole = [&](int output) { return outputs[static_cast<size_t>(output)]->flat<int64_t>().data(); };
    const auto real = [&](int output) { return outputs[static_cast<size_t>(output)]->flat<float>().data(); };
    RowBlock block;
    size_t at = 0;
    for (int64_t shard = first; shard < end; ++shard) {
      snapshot->ReadShard(static_cast<int>(shard), &block);
      CopyTo(block.keys, at, whole(0));
      CopyTo(block.values, at * static_cast<size_t>(layout.dim()), real(1));
      for (int i = 0; i < count; ++i) {
        const size_t slot = slots[static_cast<size_t>(i)];
        CopyTo(block.slots[slot], at * static_cast<size_t>(layout.slots()[slot].width), real(2 + i));
      }
      if (layout.has_frequency()) CopyTo(block.frequency, at, whole(2 + count));
      if (layout.has_last_step()) CopyTo(block.last_step, at, whole(3 + count));
      if (layout.has_last_time()) CopyTo(block.last_time_ms, at, whole(4 + count));
      at += block.rows;
    }
    return absl::OkStatus();
  }

  std::vector<std::string> slot_names_;
};

class EvExportCountersOp : public OpKernel {
 public:
  explicit EvExportCountersOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<EvResource> variable;
    OP_REQUIRES_OK(context, GetEv(context, 0, &variable));
    const std::shared_ptr<Admission> admission = variable->table()->admission();
    std::vector<KeyCount> counts;
    uint64_t cells = 0;
    bool steps = false;
    bool times = false;
    if (admission != nullptr) {
      for (size_t part = 0; part < admission->parts(); ++part) {
        admission->Visit(part, [&counts](const KeyCount& counted) { counts.push_back(counted); });
      }
      cells = admission->state_bytes();
      steps = admission->config().last_step;
      times = admission->config().last_time;
    }
    const int64_t n = static_cast<int64_t>(counts.size());
    Tensor* outputs[5];
    const int64_t sizes[5] = {n, n, steps ? n : 0, times ? n : 0, static_cast<int64_t>(cells)};
    for (int i = 0; i < 5; ++i) {
      OP_REQUIRES_OK(context, context->allocate_output(i, TensorShape({sizes[i]}), &outputs[i]));
    }
    for (int64_t i = 0; i < n; ++i) {
      const KeyCount& counted = counts[static_cast<size_t>(i)];
      outputs[0]->flat<int64_t>()(i) = counted.key;
      outputs[1]->flat<int64_t>()(i) = counted.count;
      if (steps) outputs[2]->flat<int64_t>()(i) = counted.last_step;
      if (times) outputs[3]->flat<int64_t>()(i) = counted.last_time_ms;
    }
    if (cells > 0) admission->ReadState(0, cells, outputs[4]->flat<uint8_t>().data());
  }
};

REGISTER_KERNEL_BUILDER(Name("TfctrEvExport").Device(tensorflow::DEVICE_CPU), EvExportOp);
REGISTER_KERNEL_BUILDER(Name("TfctrEvExportCounters").Device(tensorflow::DEVICE_CPU), EvExportCountersOp);

}  // namespace
}  // namespace tfctr
