// Kernels of the store ops; see store_resource.h for the resource and docs/bundle_format.md for the files.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tfctr/core/kernels/store_resource.h"

namespace tfctr {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

class StoreOp : public OpKernel {
 public:
  explicit StoreOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ready_) OP_REQUIRES_OK(context, Prepare(context));
    context->set_output(0, handle_);
  }
  bool IsExpensive() override { return false; }

 private:
  absl::Status Prepare(OpKernelContext* context) {
    tensorflow::ContainerInfo info;
    TF_RETURN_IF_ERROR(info.Init(context->resource_manager(), def(), /*use_node_name_as_default=*/true));
    const tensorflow::ResourceHandle handle =
        tensorflow::MakeResourceHandle<StoreResource>(context, info.container(), info.name());
    tensorflow::core::RefCountPtr<StoreResource> resource;
    TF_RETURN_IF_ERROR(
        tensorflow::LookupOrCreateResource<StoreResource>(context, handle, &resource, [&info](StoreResource** created) {
          *created = new StoreResource(info.name());
          return absl::OkStatus();
        }));
    tensorflow::AllocatorAttributes on_host;
    on_host.set_on_host(true);
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_RESOURCE, TensorShape({}), &handle_, on_host));
    handle_.scalar<tensorflow::ResourceHandle>()() = handle;
    ready_ = true;
    return absl::OkStatus();
  }

  std::mutex mutex_;
  bool ready_ = false;
  Tensor handle_;
};

// A tensor's memory that is a table's: the mapped file, or the mapping that has an overlay's rows in it. OwnsMemory()
// is false, so that no kernel forwards it as an output buffer to write into: the pages are read-only.
class MappedBuffer : public tensorflow::TensorBuffer {
 public:
  MappedBuffer(std::shared_ptr<const ServedTable> table, const uint8_t* data)
      : TensorBuffer(const_cast<uint8_t*>(data)), table_(std::move(table)) {}
  size_t size() const override { return table_->table()->bytes(); }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(size()));
    proto->set_allocator_name("tfctr_mapped_file");
  }

 private:
  const std::shared_ptr<const ServedTable> table_;
};

class TableOp : public OpKernel {
 public:
  explicit TableOp(OpKernelConstruction* context) : OpKernel(context), store_(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("shape", &shape_));
    OP_REQUIRES(context, FromTensorFlow(dtype_) != DType::kInvalid,
                absl::InvalidArgumentError(
                    absl::StrCat("TfctrTable: tables cannot hold ", tensorflow::DataTypeString(dtype_))));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const OpenedFiles> files;
    OP_REQUIRES_OK(context, store_.Files(context, 0, &files));
    const TableFile* table = nullptr;
    OP_REQUIRES_OK(context, TableAt(*files, index_, &table));
    const absl::Span<const int64_t> dims(table->shape());
    const bool same_shape = absl::MakeConstSpan(shape_.dim_sizes()) == dims;
    OP_REQUIRES(
        context, ToTensorFlow(table->dtype()) == dtype_ && same_shape,
        absl::InvalidArgumentError(absl::StrCat(
            "table '", table->name(), "' in '", table->path(), "' is ", DTypeName(table->dtype()), " [",
            absl::StrJoin(dims, ","), "], expected ", tensorflow::DataTypeString(dtype_), " ", shape_.DebugString())));
    files->dense_reads->Set(static_cast<size_t>(index_));
    const std::shared_ptr<const ServedTable>& served = files->served[index_];
    const Result<const uint8_t*> data = served->Dense();
    OP_REQUIRES_OK(context, ToTensorFlow(data.status()));
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> buffer(new MappedBuffer(served, data.value()));
    context->set_output(0, Tensor(dtype_, shape_, std::move(buffer)));
  }
  bool IsExpensive() override { return false; }

 private:
  const StoreReader store_;
  int64_t index_ = 0;
  DataType dtype_ = tensorflow::DT_INVALID;
  TensorShape shape_;
};

class VocabFindOp : public OpKernel {
 public:
  explicit VocabFindOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const OpenedFiles> files;
    OP_REQUIRES_OK(context, GetOpenedFiles(context, 0, &files));
    const VocabFile* vocab = nullptr;
    OP_REQUIRES_OK(context, VocabAt(*files, index_, &vocab));
    const Tensor& keys = context->input(1);
    OP_REQUIRES(context, tensorflow::TensorShapeUtils::IsScalar(context->input(2).shape()),
                absl::InvalidArgumentError(absl::StrCat("TfctrVocabFind: default_value must be a scalar, got shape ",
                                                        context->input(2).shape().DebugString())));
    const KeyKind kind = keys.dtype() == tensorflow::DT_STRING ? KeyKind::kString : KeyKind::kInt64;
    OP_REQUIRES(context, kind == vocab->key_kind(),
                absl::InvalidArgumentError(absl::StrCat(
                    "vocabulary '", vocab->name(), "' in '", vocab->path(), "' has ", KeyKindName(vocab->key_kind()),
                    " keys, but the keys given are ", tensorflow::DataTypeString(keys.dtype()))));
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, keys.shape(), &values));
    const int64_t fallback = context->input(2).scalar<int64_t>()();
    int64_t* out = values->flat<int64_t>().data();
    if (keys.dtype() == tensorflow::DT_STRING) {
      const tstring* in = keys.flat<tstring>().data();
      Find(context, *vocab, keys.NumElements(), fallback, out,
           [in](int64_t i) { return std::string_view(in[i].data(), in[i].size()); });
    } else if (keys.dtype() == tensorflow::DT_INT64) {
      const int64_t* in = keys.flat<int64_t>().data();
      Find(context, *vocab, keys.NumElements(), fallback, out, [in](int64_t i) { return in[i]; });
    } else {
      const int32_t* in = keys.flat<int32_t>().data();
      Find(context, *vocab, keys.NumElements(), fallback, out, [in](int64_t i) { return int64_t{in[i]}; });
    }
  }

 private:
  template <typename GetKey>
  static void Find(OpKernelContext* context, const VocabFile& vocab, int64_t n, int64_t fallback, int64_t* out,
                   const GetKey& key) {
    constexpr int64_t kCyclesPerKey = 150;
    const auto* workers = context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(workers->num_threads, workers->workers, n, kCyclesPerKey, [&](int64_t begin, int64_t end) {
      vocab.FindEach(
          end - begin, [&](int64_t i) { return key(begin + i); },
          [&](int64_t i, int64_t value) { out[begin + i] = value; },
          [&](int64_t i, const auto&) { out[begin + i] = fallback; });
    });
  }

  int64_t index_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("TfctrStore").Device(tensorflow::DEVICE_CPU), StoreOp);
REGISTER_KERNEL_BUILDER(Name("TfctrTable").Device(tensorflow::DEVICE_CPU), TableOp);
REGISTER_KERNEL_BUILDER(Name("TfctrVocabFind").Device(tensorflow::DEVICE_CPU), VocabFindOp);

}  // namespace
}  // namespace tfctr
