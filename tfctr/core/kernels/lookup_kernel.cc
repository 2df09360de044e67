// TfctrFusedLookup's kernel: turns tensors into views, allocates outputs, splits work over the intra-op threads. What
// is computed lives in tfctr/core/lookup.
//
// Thread-safety: Compute may run concurrently; a request's state belongs to the thread that runs it and is reused.
// The outputs must not be forwarded from inputs; they are written by several threads, each row by exactly one.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "external/farmhash_archive/src/farmhash.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tfctr/core/kernels/store_resource.h"
#include "tfctr/core/lookup/fused_lookup.h"
#include "tfctr/core/lookup/packed_layout.h"
#include "tfctr/core/profiling/step_record.h"
#include "tfctr/core/storage/isa.h"

namespace tfctr {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

constexpr int kStore = 0;
constexpr int kArena = 1;
constexpr int kShapes = 2;
constexpr int kStrings = 3;
constexpr int kArgs = 4;

// What StringToHashBucketFast uses; farmhash's symbols are in TensorFlow's framework library.
uint64_t Fingerprint64(std::string_view text) { return ::util::Fingerprint64(text.data(), text.size()); }

void StringsAtIndex(const void* data, int64_t begin, int64_t n, std::string_view* out) {
  const tstring* texts = static_cast<const tstring*>(data) + begin;
  for (int64_t i = 0; i < n; ++i) out[i] = std::string_view(texts[i].data(), texts[i].size());
}

// State of one request, reused by the next one of the thread.
struct RequestState {
  Call call;
  std::vector<PackedInput> packed;
  std::vector<const VocabFile*> vocabs;

  static RequestState& OfThread() {
    static thread_local RequestState state;
    return state;
  }
};

class TensorInputs : public LookupInputs {
 public:
  TensorInputs(OpKernelContext* context, const std::vector<ValueType>& layout, RequestState* state)
      : context_(context), layout_(layout), state_(state) {}

  Status Get(Source source, TensorView* view) const override {
    if (!source.packed) {
      FromTensor(context_->input(kArgs + source.index), view);
      return Status::Ok();
    }
    const PackedInput& input = state_->packed[source.index];
    const ValueType& type = layout_[source.index];
    view->dtype = type.dtype;
    view->is_string = type.is_string;
    view->elements = input.elements;
    view->rank = input.rank <= TensorView::kMaxRank ? input.rank : -1;
    for (int d = 0; d < view->rank; ++d) view->dims[d] = input.dims[d];
    if (type.is_string) {
      view->data = context_->input(kStrings).flat<tstring>().data() + input.offset;
      view->strings_at = &StringsAtIndex;
    } else {
      view->data = context_->input(kArena).tensor_data().data() + input.offset;
    }
    return Status::Ok();
  }

  StepContext Steps() const override {
    return {&Fingerprint64, state_->vocabs.data(), static_cast<int64_t>(state_->vocabs.size())};
  }

 private:
  static void FromTensor(const Tensor& tensor, TensorView* view) {
    view->is_string = tensor.dtype() == tensorflow::DT_STRING;
    view->dtype = view->is_string ? DType::kInvalid : FromTensorFlow(tensor.dtype());
    view->elements = tensor.NumElements();
    view->rank = tensor.dims() <= TensorView::kMaxRank ? tensor.dims() : -1;
    for (int d = 0; d < view->rank; ++d) view->dims[d] = tensor.dim_size(d);
    view->data = tensor.data();
    view->strings_at = view->is_string ? &StringsAtIndex : nullptr;
  }

  OpKernelContext* const context_;
  const std::vector<ValueType>& layout_;
  RequestState* const state_;
};

absl::Status ToValueTypes(const std::vector<DataType>& from, const char* what, std::vector<ValueType>* to) {
  for (const DataType type : from) {
    const bool is_string = type == tensorflow::DT_STRING;
    const DType dtype = is_string ? DType::kInvalid : FromTensorFlow(type);
    if (!is_string && dtype == DType::kInvalid) {
      return absl::InvalidArgumentError(std::string(what) + " holds " + tensorflow::DataTypeString(type) +
                                        ", which lookups cannot read");
    }
    to->push_back({dtype, is_string});
  }
  return absl::OkStatus();
}

struct ResolvedFiles {
  std::shared_ptr<const OpenedFiles> files;
  LookupTables tables;
  std::vector<size_t> table_numbers;  // of each lookup, see StepRecord
  size_t tables_to_count = 0;         // above all of them
};

class FusedLookupOp : public OpKernel {
 public:
  explicit FusedLookupOp(OpKernelConstruction* context) : OpKernel(context), store_(context) {
    std::string spec;
    std::vector<DataType> layout;
    std::vector<DataType> args;
    std::vector<DataType> outputs;
    OP_REQUIRES_OK(context, context->GetAttr("spec", &spec));
    OP_REQUIRES_OK(context, context->GetAttr("layout", &layout));
    OP_REQUIRES_OK(context, context->GetAttr("Targs", &args));
    OP_REQUIRES_OK(context, context->GetAttr("Tout", &outputs));
    OP_REQUIRES_OK(context, ToValueTypes(layout, "layout", &layout_));
    std::vector<ValueType> arg_types;
    OP_REQUIRES_OK(context, ToValueTypes(args, "Targs", &arg_types));
    for (const ValueType& type : layout_) {
      element_bytes_.push_back(type.is_string ? 0 : static_cast<uint32_t>(DTypeSize(type.dtype)));
    }
    const Result<Isa> isa = ActiveIsa();
    OP_REQUIRES_OK(context, ToTensorFlow(isa.status()));
    Result<std::unique_ptr<const FusedLookup>> plan = FusedLookup::Create(spec, layout_, arg_types, isa.value());
    OP_REQUIRES_OK(context, ToTensorFlow(plan.status()));
    plan_ = plan.Take();
    const std::vector<OutputSpec>& specs = plan_->spec().outputs;
    OP_REQUIRES(context, specs.size() == outputs.size(),
                absl::InvalidArgumentError("the spec has " + std::to_string(specs.size()) + " outputs, Tout has " +
                                           std::to_string(outputs.size())));
    for (size_t k = 0; k < specs.size(); ++k) {
      OP_REQUIRES(context, ToTensorFlow(specs[k].dtype) == outputs[k],
                  absl::InvalidArgumentError("output " + std::to_string(k) + " is " + DTypeName(specs[k].dtype) +
                                             " in the spec, not so in Tout"));
    }
  }

  void Compute(OpKernelContext* context) override {
    const StepTimer timer(StepPart::kLookup);
    std::shared_ptr<const OpenedFiles> files;
    OP_REQUIRES_OK(context, store_.Files(context, kStore, &files));
    RequestState& state = RequestState::OfThread();
    OP_REQUIRES_OK(context, ParsePacked(context, &state));
    state.vocabs.resize(files->vocabs.size());
    for (size_t i = 0; i < files->vocabs.size(); ++i) state.vocabs[i] = files->vocabs[i].get();
    Call& call = state.call;
    call.SetCounting(timer.record() != nullptr);
    std::shared_ptr<const ResolvedFiles> resolved;
    OP_REQUIRES_OK(context, Resolve(files, &resolved));
    const TensorInputs inputs(context, layout_, &state);
    OP_REQUIRES_OK(context, ToTensorFlow(plan_->Prepare(inputs, resolved->tables, &call)));
    OP_REQUIRES_OK(context, AllocateOutputs(context, &call));
    const auto& workers = *context->device()->tensorflow_cpu_worker_threads();
    constexpr int64_t kIdCycles = 60;  // a hash, or a key found in a vocabulary
    tensorflow::Shard(workers.num_threads, workers.workers, call.id_work(), kIdCycles,
                      [this, &call](int64_t begin, int64_t end) { plan_->RunIds(begin, end, &call); });
    tensorflow::Shard(workers.num_threads, workers.workers, call.work(), call.work_cost(),
                      [this, &call](int64_t begin, int64_t end) { plan_->Run(begin, end, &call); });
    OP_REQUIRES_OK(context, ToTensorFlow(plan_->Finish(&call)));
    if (timer.record() == nullptr) return;
    TableCounts* const counts = timer.record()->Tables(resolved->tables_to_count);
    for (size_t i = 0; i < resolved->table_numbers.size(); ++i) {
      counts[resolved->table_numbers[i]].lookups += plan_->Lookups(call, i);
      counts[resolved->table_numbers[i]].default_rows += plan_->DefaultRows(call, i);
    }
  }

 private:
  // The tables of the set of files that is open now; checked once per set, not per request.
  absl::Status Resolve(const std::shared_ptr<const OpenedFiles>& files,
                       std::shared_ptr<const ResolvedFiles>* resolved) {
    *resolved = std::atomic_load(&resolved_);
    if (*resolved != nullptr && (*resolved)->files == files) return absl::OkStatus();
    auto made = std::make_shared<ResolvedFiles>();
    made->files = files;
    std::vector<const ServedTable*> tables;
    for (const auto& table : files->served) tables.push_back(table.get());
    TF_RETURN_IF_ERROR(ToTensorFlow(plan_->ResolveTables(tables, &made->tables)));
    for (const LookupTable& table : made->tables) {
      made->table_numbers.push_back(StepRecord::TableNumber(table.name));
      made->tables_to_count = std::max(made->tables_to_count, made->table_numbers.back() + 1);
    }
    *resolved = made;
    std::atomic_store(&resolved_, *resolved);
    return absl::OkStatus();
  }

  absl::Status ParsePacked(OpKernelContext* context, RequestState* state) const {
    for (const int input : {kArena, kShapes, kStrings}) {
      if (context->input(input).dims() != 1) {
        return absl::InvalidArgumentError("arena, shapes and strings must be vectors, input " + std::to_string(input) +
                                          " has shape " + context->input(input).shape().DebugString());
      }
    }
    if (layout_.empty()) return absl::OkStatus();
    const Tensor& shapes = context->input(kShapes);
    std::string error;
    if (!ParsePackedLayout(element_bytes_.data(), element_bytes_.size(), shapes.flat<int64_t>().data(),
                           static_cast<size_t>(shapes.NumElements()),
                           static_cast<uint64_t>(context->input(kArena).NumElements()),
                           static_cast<uint64_t>(context->input(kStrings).NumElements()), &state->packed, &error)) {
      return absl::InvalidArgumentError(error);
    }
    return absl::OkStatus();
  }

  absl::Status AllocateOutputs(OpKernelContext* context, Call* call) const {
    for (size_t k = 0; k < call->outputs().size(); ++k) {
      const OutputShape& output = call->outputs()[k];
      const int64_t columns = plan_->spec().outputs[k].columns;
      TensorShape shape;
      if (output.like == nullptr) {
        TF_RETURN_IF_ERROR(shape.AddDimWithStatus(output.rows));
      } else {
        for (int d = 0; d < output.like_rank; ++d) {
          TF_RETURN_IF_ERROR(shape.AddDimWithStatus(output.like->dims[d]));
        }
      }
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(columns));
      Tensor* tensor = nullptr;
      TF_RETURN_IF_ERROR(context->allocate_output(static_cast<int>(k), shape, &tensor));
      call->SetOutput(k, tensor->data());
    }
    return absl::OkStatus();
  }

  const StoreReader store_;
  std::unique_ptr<const FusedLookup> plan_;
  std::vector<ValueType> layout_;
  std::vector<uint32_t> element_bytes_;
  std::shared_ptr<const ResolvedFiles> resolved_;  // by std::atomic_load and std::atomic_store only
};

REGISTER_KERNEL_BUILDER(Name("TfctrFusedLookup").Device(tensorflow::DEVICE_CPU), FusedLookupOp);

}  // namespace
}  // namespace tfctr
