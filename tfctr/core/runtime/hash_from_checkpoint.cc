#include "tfctr/core/runtime/hash_from_checkpoint.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "tfctr/core/embedding/config.h"
#include "tfctr/core/kernels/ev_bundle.h"
#include "tfctr/core/lookup/row_narrowing.h"
#include "tfctr/core/runtime/checkpoint_index.h"
#include "tfctr/core/storage/checkpoint_column.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/json.h"

namespace tfctr {
namespace {

constexpr size_t kNamesInMessage = 8;

// What NAME/config says that a frozen table needs.
struct Description {
  EvConfig config;
  Metadata metadata;
};

std::string TablesOf(const CheckpointIndex& index) {
  std::string names;
  size_t count = 0;
  for (const auto& [key, entry] : index) {
    const size_t slash = key.rfind('/');
    const std::string name = slash == std::string::npos ? "" : key.substr(0, slash);
    if (key != TensorName(name, "keys") || index.count(TensorName(name, "config")) == 0) continue;
    if (++count <= kNamesInMessage) names += (count == 1 ? "'" : ", '") + name + "'";
  }
  if (count == 0) return "it has no embedding variables";
  if (count > kNamesInMessage) names += " and " + std::to_string(count - kNamesInMessage) + " more";
  return "it has " + names;
}

// A whole number that the description holds as text; "0" where it is missing.
std::string NumberText(const Json& description, const char* member) {
  const auto it = description.map.find(member);
  return it == description.map.end() || it->second.kind != Json::Kind::kText ? "0" : it->second.text;
}

// The table's configuration without what only training needs.
std::string ServingConfig(Json table) {
  for (const char* member : {"optimizer", "clip"}) table.map.erase(member);
  const auto eviction = table.map.find("eviction");
  if (eviction != table.map.end()) {
    for (Json& rule : eviction->second.list) rule.map.erase("protected_keys");  // may be any number
  }
  return WriteJson(table);
}

Result<Description> ReadDescription(const std::string& what, const std::string& prefix, const std::string& tensor) {
  Result<tensorflow::Tensor> text = ReadTensor(prefix, tensor);
  if (!text.ok()) return text.status();
  const auto damaged = [&](const std::string& why) {
    return Status::Corrupt(what + "tensor '" + tensor + "' does not describe a table: " + why);
  };
  if (text.value().dtype() != tensorflow::DT_STRING || text.value().NumElements() != 1) {
    return damaged("it is no string");
  }
  const Result<Json> parsed = ParseJson(std::string(text.value().flat<tensorflow::tstring>()(0)));
  if (!parsed.ok()) return damaged(parsed.status().message);
  const Json& json = parsed.value();
  const auto format = json.map.find("format");
  const auto table = json.map.find("table");
  if (format == json.map.end() || format->second.kind != Json::Kind::kNumber || table == json.map.end() ||
      table->second.kind != Json::Kind::kMap) {
    return damaged("'format' or 'table' is missing");
  }
  if (format->second.number == kEvDeltaFormat) {
    return Status::Invalid(what +
                           "it is a delta checkpoint, which holds only what changed in the table: take a full save "
                           "(DeltaCheckpointManager.save(full=True))");
  }
  if (format->second.number > kEvBundleFormat) {
    return Status::Invalid(what + "it was written by a newer tfctr; this one reads formats up to " +
                           std::to_string(kEvBundleFormat));
  }
  Result<EvConfig> config = ParseEvConfig(WriteJson(table->second));
  if (!config.ok()) return damaged(config.status().message);
  Description description;
  description.config = config.Take();
  const auto key_dtype = json.map.find("key_dtype");
  description.metadata = {
      {"step", NumberText(json, "step")},
      {"time_ms", NumberText(json, "time_ms")},
      {"key_dtype", key_dtype == json.map.end() ? "" : key_dtype->second.text},
      {"config", ServingConfig(table->second)},
  };
  return description;
}

// The values of the checkpoint as a hash file stores them.
class Values {
 public:
  Values(std::string what, std::vector<CheckpointExtent> extents, int64_t dim, DType storage)
      : what_(std::move(what)),
        extents_(std::move(extents)),
        dim_(dim),
        storage_(storage),
        stored_bytes_(StoredRowBytes(storage, dim)),
        narrow_(RowNarrowerOf(storage)) {}

  Status Read(int64_t first, int64_t n, uint8_t* rows) {
    if (first == 0) {  // another pass
      Result<CheckpointColumn> column = CheckpointColumn::Open(extents_, static_cast<uint64_t>(dim_) * sizeof(float));
      if (!column.ok()) return column.status();
      column_ = column.Take();
    }
    if (narrow_ == nullptr) return column_.Read(n, rows);
    wide_.resize(static_cast<size_t>(n * dim_));
    TFCTR_RETURN_IF_ERROR(column_.Read(n, wide_.data()));
    for (int64_t i = 0; i < n; ++i) {
      const std::string row = "row " + std::to_string(first + i);
      TFCTR_RETURN_IF_ERROR(Store(wide_.data() + i * dim_, row, rows + i * stored_bytes_));
    }
    return Status::Ok();
  }

  Status Store(const float* row, const std::string& which, uint8_t* out) {
    if (narrow_ == nullptr) {
      std::memcpy(out, row, static_cast<size_t>(stored_bytes_));
      return Status::Ok();
    }
    const std::string wrong = narrow_(row, dim_, out, &max_abs_error_);
    if (wrong.empty()) return Status::Ok();
    return Status::Invalid(what_ + which + " " + wrong + ", so it can't be stored as " + DTypeName(storage_));
  }

  double max_abs_error() const { return max_abs_error_; }

 private:
  const std::string what_;
  const std::vector<CheckpointExtent> extents_;
  const int64_t dim_;
  const DType storage_;
  const int64_t stored_bytes_;
  const RowNarrower narrow_;  // null: rows are stored as they are
  CheckpointColumn column_;
  std::vector<float> wide_;
  double max_abs_error_ = 0.0;
};

// The entry of one column of the table: a `dtype` of `rank` dimensions.
Result<const CheckpointEntry*> ColumnOf(const CheckpointIndex& index, const std::string& what,
                                        const std::string& tensor, tensorflow::DataType dtype, size_t rank) {
  const CheckpointEntry& entry = index.at(tensor);
  if (entry.dtype == dtype && entry.shape.size() == rank) return &entry;
  return Status::Corrupt(what + "tensor '" + tensor + "' is " + TypeName(entry.dtype) + " of rank " +
                         std::to_string(entry.shape.size()) + ", expected " + TypeName(dtype) + " of rank " +
                         std::to_string(rank));
}

Result<std::vector<int64_t>> ReadKeys(const CheckpointIndex& index, const std::string& prefix,
                                      const std::string& tensor) {
  Result<std::vector<CheckpointExtent>> extents = RowExtents(index, prefix, tensor);
  if (!extents.ok()) return extents.status();
  Result<CheckpointColumn> column = CheckpointColumn::Open(extents.Take(), sizeof(int64_t));
  if (!column.ok()) return column.status();
  std::vector<int64_t> keys(static_cast<size_t>(column.value().rows()));
  TFCTR_RETURN_IF_ERROR(column.value().Read(column.value().rows(), keys.data()));
  return keys;
}

}  // namespace

Result<HashBuild> HashFileFromCheckpoint(const std::string& prefix, const std::string& table, const std::string& path,
                                         const std::string& name, DType storage, const HashFileProgress& progress) {
  const std::string what = "embedding variable '" + table + "' of checkpoint '" + prefix + "': ";
  const Result<CheckpointIndex> read = ReadCheckpointIndex(prefix);
  if (!read.ok()) return read.status();
  const CheckpointIndex& index = read.value();
  for (const char* part : {"config", "keys", "values"}) {
    if (index.count(TensorName(table, part)) > 0) continue;
    return Status::Invalid(what + "there is no tensor '" + TensorName(table, part) + "'; " + TablesOf(index));
  }
  const Result<Description> description = ReadDescription(what, prefix, TensorName(table, "config"));
  if (!description.ok()) return description.status();
  const EvConfig& config = description.value().config;
  const auto keys_entry = ColumnOf(index, what, TensorName(table, "keys"), tensorflow::DT_INT64, 1);
  if (!keys_entry.ok()) return keys_entry.status();
  const auto values_entry = ColumnOf(index, what, TensorName(table, "values"), tensorflow::DT_FLOAT, 2);
  if (!values_entry.ok()) return values_entry.status();
  const std::vector<int64_t>& shape = values_entry.value()->shape;
  if (shape[0] != keys_entry.value()->shape[0] || shape[1] != config.dim) {
    return Status::Corrupt(what + std::to_string(keys_entry.value()->shape[0]) + " keys of dim " +
                           std::to_string(config.dim) + ", but values are [" + std::to_string(shape[0]) + ", " +
                           std::to_string(shape[1]) + "]");
  }
  HashFileSpec spec;
  spec.name = name;
  spec.dim = config.dim;
  spec.storage = storage;
  spec.extra = description.value().metadata;
  spec.extra["source"] = table;
  TFCTR_RETURN_IF_ERROR(CheckHashFileSpec(spec, shape[0]));
  Result<std::vector<int64_t>> keys = ReadKeys(index, prefix, TensorName(table, "keys"));
  if (!keys.ok()) return keys.status();
  Result<std::vector<CheckpointExtent>> extents = RowExtents(index, prefix, TensorName(table, "values"));
  if (!extents.ok()) return extents.status();
  Values values(what, extents.Take(), config.dim, storage);
  std::vector<uint8_t> default_row(static_cast<size_t>(StoredRowBytes(storage, config.dim)));
  TFCTR_RETURN_IF_ERROR(values.Store(config.default_value.data(), "the default value", default_row.data()));
  TFCTR_RETURN_IF_ERROR(WriteHashFile(
      path, spec, keys.Take(), default_row.data(),
      [&values](int64_t first, int64_t n, uint8_t* rows) { return values.Read(first, n, rows); }, progress));
  return HashBuild{values.max_abs_error()};
}

Result<FrozenDescription> DescribeFrozen(const std::string& prefix, const std::string& table) {
  const std::string what = "embedding variable '" + table + "' of checkpoint '" + prefix + "': ";
  Result<Description> description = ReadDescription(what, prefix, TensorName(table, "config"));
  if (!description.ok()) return description.status();
  return FrozenDescription{description.value().config.default_value, description.value().metadata};
}

}  // namespace tfctr
