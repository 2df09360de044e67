#include "tfctr/core/runtime/checkpoint_index.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"
#include "tensorflow/core/util/saved_tensor_slice_util.h"
#include "tensorflow/core/util/tensor_bundle/naming.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tfctr/core/kernels/store_resource.h"
#include "tfctr/core/storage/dtype.h"
#include "xla/tsl/lib/io/iterator.h"
#include "xla/tsl/lib/io/table.h"
#include "xla/tsl/lib/io/table_options.h"

namespace tfctr {
namespace {

using tensorflow::BundleEntryProto;
using tensorflow::BundleHeaderProto;

Status FromAbsl(const absl::Status& status, const std::string& what) {
  std::string message = what + ": " + std::string(status.message());
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return Status::Ok();
    case absl::StatusCode::kNotFound:
      return Status::NotFound(std::move(message));
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kOutOfRange:
      return Status::Corrupt(std::move(message));
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
      return Status::Io(std::move(message));
    default:
      return Status::Invalid(std::move(message));
  }
}

Status Damaged(const std::string& prefix, const std::string& why) {
  return Status::Corrupt("the checkpoint index '" + prefix + ".index' is damaged: " + why);
}

using RawIndex = std::map<std::string, std::string>;  // key bytes -> serialised entry

Status ReadRawIndex(const std::string& prefix, RawIndex* raw) {
  tensorflow::Env* env = tensorflow::Env::Default();
  const std::string path = tensorflow::MetaFilename(prefix);
  uint64_t size = 0;
  absl::Status status = env->GetFileSize(path, &size);
  if (!status.ok()) return FromAbsl(status, "no checkpoint '" + prefix + "'");
  std::unique_ptr<tensorflow::RandomAccessFile> file;
  status = env->NewRandomAccessFile(path, &file);
  if (!status.ok()) return FromAbsl(status, "cannot read '" + path + "'");
  tsl::table::Table* opened = nullptr;
  status = tsl::table::Table::Open(tsl::table::Options(), file.get(), size, &opened);
  const std::unique_ptr<tsl::table::Table> table(opened);
  if (!status.ok()) return Damaged(prefix, std::string(status.message()));
  const std::unique_ptr<tsl::table::Iterator> it(table->NewIterator());
  for (it->SeekToFirst(); it->Valid(); it->Next()) raw->emplace(it->key(), it->value());
  if (!it->status().ok()) return Damaged(prefix, std::string(it->status().message()));
  return Status::Ok();
}

// Turns serialised entries into extents; one object per index.
class Parser {
 public:
  Parser(const std::string& prefix, const RawIndex& raw) : prefix_(prefix), raw_(raw) {}

  Status ParseHeader() {
    const auto it = raw_.find("");  // the header's key sorts first
    BundleHeaderProto header;
    if (it == raw_.end() || !header.ParseFromString(it->second)) return Damaged(prefix_, "it has no header");
    if (header.endianness() == BundleHeaderProto::BIG) {
      return Status::Invalid("checkpoint '" + prefix_ +
                             "' is big-endian; only little-endian checkpoints can be converted");
    }
    shards_ = header.num_shards();
    if (shards_ < 1) return Damaged(prefix_, "it names no shards");
    return Status::Ok();
  }

  Status ParseEntry(const std::string& key, const std::string& value, CheckpointEntry* entry) {
    BundleEntryProto proto;
    TFCTR_RETURN_IF_ERROR(ParseProto(key, value, &proto));
    entry->dtype = proto.dtype();
    const tensorflow::TensorShape shape(proto.shape());
    for (int axis = 0; axis < shape.dims(); ++axis) entry->shape.push_back(shape.dim_size(axis));
    entry->partitioned = proto.slices_size() > 0;
    if (!entry->partitioned) {
      CheckpointSlice whole{std::vector<int64_t>(entry->shape.size(), 0), entry->shape, {}};
      TFCTR_RETURN_IF_ERROR(Extent(key, proto, &whole.extent));
      entry->slices.push_back(std::move(whole));
      return Status::Ok();
    }
    for (const tensorflow::TensorSliceProto& slice : proto.slices()) {
      TFCTR_RETURN_IF_ERROR(ParseSlice(key, shape, proto.dtype(), slice, entry));
    }
    std::sort(entry->slices.begin(), entry->slices.end(),
              [](const CheckpointSlice& a, const CheckpointSlice& b) { return a.start < b.start; });
    return Status::Ok();
  }

 private:
  Status ParseProto(const std::string& key, const std::string& value, BundleEntryProto* proto) const {
    if (!proto->ParseFromString(value)) return Damaged(prefix_, "the entry of '" + key + "' does not parse");
    if (!tensorflow::TensorShape::IsValid(proto->shape())) {
      return Damaged(prefix_, "the shape of '" + key + "' is not valid");
    }
    return Status::Ok();
  }

  Status ParseSlice(const std::string& key, const tensorflow::TensorShape& shape, tensorflow::DataType dtype,
                    const tensorflow::TensorSliceProto& slice_proto, CheckpointEntry* entry) {
    tensorflow::TensorSlice slice;
    if (!tensorflow::TensorSlice::BuildTensorSlice(slice_proto, &slice).ok() || slice.dims() != shape.dims()) {
      return Damaged(prefix_, "a slice of '" + key + "' is not valid");
    }
    CheckpointSlice part;
    for (int axis = 0; axis < slice.dims(); ++axis) {
      const int64_t start = slice.IsFullAt(axis) ? 0 : slice.start(axis);
      const int64_t length = slice.IsFullAt(axis) ? shape.dim_size(axis) : slice.length(axis);
      if (start < 0 || length < 0 || start > shape.dim_size(axis) - length) {
        return Damaged(prefix_, "a slice of '" + key + "' reaches outside the tensor");
      }
      part.start.push_back(start);
      part.length.push_back(length);
    }
    const auto it = raw_.find(tensorflow::checkpoint::EncodeTensorNameSlice(key, slice));
    if (it == raw_.end()) {
      return Damaged(prefix_, "the part " + slice.DebugString() + " of '" + key + "' is missing");
    }
    BundleEntryProto proto;
    TFCTR_RETURN_IF_ERROR(ParseProto(key, it->second, &proto));
    const tensorflow::TensorShape part_shape(proto.shape());
    if (proto.dtype() != dtype || part_shape.dims() != slice.dims() ||
        !std::equal(part.length.begin(), part.length.end(), part_shape.dim_sizes().begin())) {
      return Damaged(prefix_, "the part " + slice.DebugString() + " of '" + key + "' has another type or shape");
    }
    TFCTR_RETURN_IF_ERROR(Extent(key, proto, &part.extent));
    entry->slices.push_back(std::move(part));
    return Status::Ok();
  }

  Status Extent(const std::string& key, const BundleEntryProto& proto, CheckpointExtent* extent) {
    if (proto.shard_id() < 0 || proto.shard_id() >= shards_ || proto.offset() < 0 || proto.size() < 0) {
      return Damaged(prefix_, "the entry of '" + key + "' is not valid");
    }
    extent->tensor = key;
    extent->shard_path = tensorflow::DataFilename(prefix_, proto.shard_id(), shards_);
    extent->offset = static_cast<uint64_t>(proto.offset());
    extent->bytes = static_cast<uint64_t>(proto.size());
    extent->masked_crc32c = proto.crc32c();
    const DType dtype = FromTensorFlow(proto.dtype());
    if (dtype != DType::kInvalid) {
      const tensorflow::TensorShape shape(proto.shape());
      if (extent->bytes != DTypeSize(dtype) * static_cast<uint64_t>(shape.num_elements())) {
        return Damaged(prefix_, "the entry of '" + key + "' has " + std::to_string(extent->bytes) +
                                    " bytes, not those of its shape " + shape.DebugString());
      }
    }
    uint64_t shard_bytes = 0;
    TFCTR_RETURN_IF_ERROR(ShardSize(key, extent->shard_path, &shard_bytes));
    if (extent->offset > shard_bytes || extent->bytes > shard_bytes - extent->offset) {
      return Status::Corrupt("tensor '" + key + "': the checkpoint shard '" + extent->shard_path +
                             "' is truncated: " + std::to_string(shard_bytes) + " bytes, the tensor ends at " +
                             std::to_string(extent->offset + extent->bytes));
    }
    return Status::Ok();
  }

  Status ShardSize(const std::string& key, const std::string& path, uint64_t* bytes) {
    const auto known = shard_bytes_.find(path);
    if (known != shard_bytes_.end()) {
      *bytes = known->second;
      return Status::Ok();
    }
    const absl::Status status = tensorflow::Env::Default()->GetFileSize(path, bytes);
    if (!status.ok()) return FromAbsl(status, "tensor '" + key + "': checkpoint shard '" + path + "'");
    shard_bytes_[path] = *bytes;
    return Status::Ok();
  }

  const std::string& prefix_;
  const RawIndex& raw_;
  int32_t shards_ = 0;
  std::map<std::string, uint64_t> shard_bytes_;
};

// The parts must tile axis 0 from row 0 on and be whole on the other axes.
Status CheckRowParts(const std::string& key, const CheckpointEntry& entry) {
  int64_t next = 0;
  for (const CheckpointSlice& slice : entry.slices) {
    for (size_t axis = 1; axis < entry.shape.size(); ++axis) {
      if (slice.length[axis] != entry.shape[axis]) {
        return Status::Invalid("tensor '" + key + "' is partitioned along axis " + std::to_string(axis) +
                               "; only partitions along axis 0 can be merged");
      }
    }
    if (!entry.shape.empty()) {
      if (slice.start[0] != next) {
        return Status::Corrupt("tensor '" + key + "': the partition's rows from " + std::to_string(next) + " to " +
                               std::to_string(slice.start[0]) + " are missing or overlap");
      }
      next += slice.length[0];
    }
  }
  if (!entry.shape.empty() && next != entry.shape[0]) {
    return Status::Corrupt("tensor '" + key + "': the partition's rows from " + std::to_string(next) + " to " +
                           std::to_string(entry.shape[0]) + " are missing");
  }
  return Status::Ok();
}

}  // namespace

Result<CheckpointIndex> ReadCheckpointIndex(const std::string& prefix) {
  RawIndex raw;
  TFCTR_RETURN_IF_ERROR(ReadRawIndex(prefix, &raw));
  Parser parser(prefix, raw);
  TFCTR_RETURN_IF_ERROR(parser.ParseHeader());
  CheckpointIndex index;
  for (const auto& [key, value] : raw) {
    if (key.empty() || key[0] == '\0') continue;  // the header; parts of partitioned variables
    TFCTR_RETURN_IF_ERROR(parser.ParseEntry(key, value, &index[key]));
  }
  return index;
}

Result<const CheckpointEntry*> FindEntry(const CheckpointIndex& index, const std::string& prefix,
                                         const std::string& key) {
  const auto it = index.find(key);
  if (it != index.end()) return &it->second;
  std::string some;
  int shown = 0;
  for (auto other = index.begin(); other != index.end() && shown < 5; ++other, ++shown) {
    some += (shown == 0 ? "'" : ", '") + other->first + "'";
  }
  return Status::Invalid("checkpoint '" + prefix + "' has no tensor '" + key + "'; it has " +
                         std::to_string(index.size()) + ": " + some + (index.size() > 5 ? ", ..." : ""));
}

Result<std::vector<CheckpointExtent>> RowExtents(const CheckpointIndex& index, const std::string& prefix,
                                                 const std::string& key) {
  const Result<const CheckpointEntry*> found = FindEntry(index, prefix, key);
  if (!found.ok()) return found.status();
  TFCTR_RETURN_IF_ERROR(CheckRowParts(key, *found.value()));
  std::vector<CheckpointExtent> extents;
  for (const CheckpointSlice& slice : found.value()->slices) extents.push_back(slice.extent);
  return extents;
}

Status CopyTensorToTable(const std::string& prefix, const std::string& key, const std::string& out_path,
                         const std::string& name, const CopyProgress& progress) {
  const Result<CheckpointIndex> index = ReadCheckpointIndex(prefix);
  if (!index.ok()) return index.status();
  const Result<const CheckpointEntry*> found = FindEntry(index.value(), prefix, key);
  if (!found.ok()) return found.status();
  const CheckpointEntry& entry = *found.value();
  const DType dtype = FromTensorFlow(entry.dtype);
  if (dtype == DType::kInvalid) {
    return Status::Invalid("tensor '" + key + "' is " + TypeName(entry.dtype) + ", which a table file cannot hold");
  }
  TFCTR_RETURN_IF_ERROR(CheckRowParts(key, entry));
  Result<std::unique_ptr<TableWriter>> writer = TableWriter::Create(out_path, name, dtype, entry.shape);
  if (!writer.ok()) return writer.status();
  for (const CheckpointSlice& slice : entry.slices) {
    TFCTR_RETURN_IF_ERROR(CopyCheckpointTensor(slice.extent, writer.value().get(), progress));
  }
  return writer.value()->Finish();
}

Result<tensorflow::Tensor> ReadTensor(const std::string& prefix, const std::string& key) {
  // The index first: its errors are better, and a damaged index block must not pass for a missing tensor.
  const Result<CheckpointIndex> index = ReadCheckpointIndex(prefix);
  if (!index.ok()) return index.status();
  const Result<const CheckpointEntry*> entry = FindEntry(index.value(), prefix, key);
  if (!entry.ok()) return entry.status();
  tensorflow::BundleReader reader(tensorflow::Env::Default(), prefix);
  if (!reader.status().ok()) return FromAbsl(reader.status(), "checkpoint '" + prefix + "'");
  const std::string what = "tensor '" + key + "' in checkpoint '" + prefix + "'";
  tensorflow::Tensor tensor(entry.value()->dtype, tensorflow::TensorShape(entry.value()->shape));
  const absl::Status status = reader.Lookup(key, &tensor);
  if (!status.ok()) return FromAbsl(status, what);
  return tensor;
}

std::string TypeName(tensorflow::DataType dtype) {
  const DType ours = FromTensorFlow(dtype);
  return ours == DType::kInvalid ? tensorflow::DataTypeString(dtype) : DTypeName(ours);
}

}  // namespace tfctr
