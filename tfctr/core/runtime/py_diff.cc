// Python face of the comparison that deltas are made by (lookup/table_diff.h).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tfctr/core/kernels/ev_bundle.h"
#include "tfctr/core/lookup/row_narrowing.h"
#include "tfctr/core/lookup/table_diff.h"
#include "tfctr/core/runtime/checkpoint_index.h"
#include "tfctr/core/runtime/hash_from_checkpoint.h"
#include "tfctr/core/runtime/py_progress.h"
#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/storage/delta_file.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/overlay_file.h"
#include "tfctr/core/storage/row_source.h"
#include "tfctr/core/storage/served_table.h"
#include "tfctr/core/storage/store.h"

namespace py = pybind11;

namespace tfctr {
namespace {

// One source of newer rows, as Python describes it.
struct Described {
  std::string kind;                    // "tensor", "embedding", "table" or "hash"
  std::string prefix;                  // of the checkpoint; the path of a file
  std::string key;                     // of the tensor; the table's name in the checkpoint
  std::vector<int64_t> start, length;  // of a stored part; empty: the whole tensor
  RowNumbers numbers;
};

std::vector<Described> DescribedOf(const py::list& sources) {
  std::vector<Described> found;
  for (const py::handle& one : sources) {
    const auto dict = py::cast<py::dict>(one);
    Described made;
    made.kind = py::cast<std::string>(dict["kind"]);
    made.prefix = PathOf(dict["path"]);
    if (dict.contains("key")) made.key = py::cast<std::string>(dict["key"]);
    if (dict.contains("start")) made.start = py::cast<std::vector<int64_t>>(dict["start"]);
    if (dict.contains("length")) made.length = py::cast<std::vector<int64_t>>(dict["length"]);
    if (dict.contains("first")) made.numbers.first = py::cast<int64_t>(dict["first"]);
    if (dict.contains("stride")) made.numbers.stride = py::cast<int64_t>(dict["stride"]);
    found.push_back(std::move(made));
  }
  return found;
}

Result<CheckpointColumn> Column(const CheckpointIndex& index, const std::string& prefix, const std::string& key,
                                uint64_t row_bytes) {
  Result<std::vector<CheckpointExtent>> extents = RowExtents(index, prefix, key);
  if (!extents.ok()) return extents.status();
  return CheckpointColumn::Open(extents.Take(), row_bytes);
}

Result<CheckpointColumn> PartColumn(const CheckpointIndex& index, const Described& part, uint64_t row_bytes) {
  const Result<const CheckpointEntry*> found = FindEntry(index, part.prefix, part.key);
  if (!found.ok()) return found.status();
  for (const CheckpointSlice& slice : found.value()->slices) {
    if (slice.start == part.start && slice.length == part.length) {
      return CheckpointColumn::Open({slice.extent}, row_bytes);
    }
  }
  return Status::Invalid("tensor '" + part.key + "' of '" + part.prefix + "' is not stored in such parts");
}

// Checkpoints are opened once, whatever the number of sources that lie in them.
class Sources {
 public:
  explicit Sources(const DiffOptions& options)
      : row_bytes_(DTypeSize(options.dtype) * static_cast<uint64_t>(options.width)) {}

  Result<std::unique_ptr<RowSource>> Open(const Described& of) {
    if (of.kind == "table") return TableFileRows::Open(of.prefix, of.numbers);
    if (of.kind == "hash") {
      Result<std::shared_ptr<const HashFile>> file = HashFile::Open(of.prefix);
      if (!file.ok()) return file.status();
      return std::unique_ptr<RowSource>(new HashFileRows(file.Take()));
    }
    TFCTR_RETURN_IF_ERROR(ReadIndex(of.prefix));
    if (of.kind == "embedding") return Embedding(of);
    Result<CheckpointColumn> values =
        of.length.empty() ? Column(index_, of.prefix, of.key, row_bytes_) : PartColumn(index_, of, row_bytes_);
    if (!values.ok()) return values.status();
    return std::unique_ptr<RowSource>(new TensorRows(values.Take(), of.numbers));
  }

 private:
  Status ReadIndex(const std::string& prefix) {
    if (prefix == prefix_) return Status::Ok();
    Result<CheckpointIndex> index = ReadCheckpointIndex(prefix);
    if (!index.ok()) return index.status();
    index_ = index.Take();
    prefix_ = prefix;
    return Status::Ok();
  }

  Result<std::unique_ptr<RowSource>> Embedding(const Described& of) {
    Result<CheckpointColumn> keys = Column(index_, of.prefix, TensorName(of.key, "keys"), sizeof(int64_t));
    if (!keys.ok()) return keys.status();
    Result<CheckpointColumn> values = Column(index_, of.prefix, TensorName(of.key, "values"), row_bytes_);
    if (!values.ok()) return values.status();
    const std::string steps = TensorName(of.key, "last_step");
    const bool has_steps = index_.count(steps) != 0;
    CheckpointColumn last_step;
    if (has_steps) {
      Result<CheckpointColumn> opened = Column(index_, of.prefix, steps, sizeof(int64_t));
      if (!opened.ok()) return opened.status();
      last_step = opened.Take();
    }
    return CheckpointRows::Make(keys.Take(), values.Take(), std::move(last_step), has_steps);
  }

  const uint64_t row_bytes_;
  std::string prefix_;
  CheckpointIndex index_;
};

// A default row is no part of a delta: that of the newer state must be the one that is served.
Status CheckDefaultRow(const ServedTable& base, const Described& source) {
  if (source.kind != "embedding") return Status::Ok();
  const Result<FrozenDescription> described = DescribeFrozen(source.prefix, source.key);
  if (!described.ok()) return described.status();
  const std::vector<float>& row = described.value().default_row;
  const HashFile* hash = base.hash();
  if (hash == nullptr || static_cast<int64_t>(row.size()) != hash->dim()) {
    return Status::Invalid("table '" + base.name() + "' holds " + RowShapeText(base.shape()) +
                           ", the embedding variable '" + source.key + "' has dim " + std::to_string(row.size()));
  }
  std::vector<uint8_t> stored(static_cast<size_t>(StoredRowBytes(hash->storage(), hash->dim())));
  double error = 0.0;
  if (const RowNarrower narrow = RowNarrowerOf(hash->storage())) {
    const std::string wrong = narrow(row.data(), hash->dim(), stored.data(), &error);
    if (!wrong.empty()) return Status::Invalid("table '" + base.name() + "': the default value " + wrong);
  } else {
    std::memcpy(stored.data(), row.data(), stored.size());
  }
  if (std::memcmp(stored.data(), hash->default_row(), stored.size()) == 0) return Status::Ok();
  return Status::Invalid("table '" + base.name() + "': the default value of the embedding variable '" + source.key +
                         "' is another one, which a delta can't say");
}

Result<std::shared_ptr<const ServedTable>> Serve(const std::string& kind, const std::string& path,
                                                 const std::string& overlay_path) {
  std::shared_ptr<const OverlayFile> overlay;
  if (!overlay_path.empty()) {
    Result<std::shared_ptr<const OverlayFile>> opened = OverlayFile::Open(overlay_path);
    if (!opened.ok()) return opened.status();
    overlay = opened.Take();
  }
  if (kind == "hash") {
    Result<std::shared_ptr<const HashFile>> hash = HashFile::Open(path);
    if (!hash.ok()) return hash.status();
    return ServedTable::Make(hash.Take(), std::move(overlay));
  }
  Result<std::shared_ptr<const TableFile>> table = TableFile::Open(path);
  if (!table.ok()) return table.status();
  return ServedTable::Make(table.Take(), std::move(overlay));
}

struct DiffJob {
  std::string kind, base, overlay, out;
  std::vector<Described> sources;
  DiffOptions options;
  Metadata extra;
};

Status RunDiff(const DiffJob& job, const CopyProgress& progress, DiffCounts* counts) {
  Result<std::shared_ptr<const ServedTable>> base = Serve(job.kind, job.base, job.overlay);
  if (!base.ok()) return base.status();
  const ServedTable& table = *base.value();
  Result<std::unique_ptr<DeltaFileWriter>> writer =
      DeltaFileWriter::Create(job.out, table.name(), table.shape(), table.hashed() ? 0 : table.base_rows(), job.extra);
  if (!writer.ok()) return writer.status();
  Result<std::unique_ptr<TableDiff>> diff = TableDiff::Make(base.value(), job.options, writer.value().get());
  if (!diff.ok()) return diff.status();
  Sources sources(job.options);
  for (const Described& one : job.sources) {
    TFCTR_RETURN_IF_ERROR(CheckDefaultRow(table, one));
    Result<std::unique_ptr<RowSource>> source = sources.Open(one);
    if (!source.ok()) return source.status();
    TFCTR_RETURN_IF_ERROR(diff.value()->Compare(source.value().get(), progress));
  }
  TFCTR_RETURN_IF_ERROR(diff.value()->Finish());
  TFCTR_RETURN_IF_ERROR(writer.value()->Finish());
  *counts = diff.value()->counts();
  return Status::Ok();
}

py::dict DiffTable(const std::string& kind, const py::object& base, const py::object& overlay, const py::object& out,
                   const py::list& sources, const std::string& dtype, int64_t width, const py::object& base_step,
                   bool trust, const Metadata& extra, const py::object& progress) {
  DiffJob job{kind, PathOf(base), overlay.is_none() ? "" : PathOf(overlay), PathOf(out), DescribedOf(sources),
              {},   extra};
  job.options.dtype = DTypeFromName(dtype);
  job.options.width = width;
  job.options.with_steps = !base_step.is_none();
  if (job.options.with_steps) job.options.base_step = py::cast<int64_t>(base_step);
  job.options.trust = trust;
  DiffCounts counts;
  RunCopy(progress, [&](const CopyProgress& report) { return RunDiff(job, report, &counts); });
  py::dict dict;
  dict["rows"] = counts.rows;
  dict["base_rows"] = counts.base_rows;
  dict["added"] = counts.added;
  dict["changed"] = counts.changed;
  dict["removed"] = counts.removed;
  dict["trusted"] = counts.trusted;
  dict["old_steps"] = counts.old_steps;
  dict["nonfinite"] = counts.nonfinite;
  dict["first_nonfinite"] = counts.nonfinite ? py::object(py::int_(counts.first_nonfinite)) : py::none();
  return dict;
}

}  // namespace

void BindDiff(py::module_& module) {
  module.def(
      "frozen_description",
      [](const py::object& prefix, const std::string& table) {
        const FrozenDescription found = Unwrap(DescribeFrozen(PathOf(prefix), table));
        return py::make_tuple(found.default_row, found.metadata);
      },
      py::arg("prefix"), py::arg("table"),
      "(default row, metadata: step, time_ms, key_dtype, config) of an embedding variable of a checkpoint.");
  module.def("diff_table", &DiffTable, py::arg("kind"), py::arg("base"), py::arg("overlay"), py::arg("out"),
             py::arg("sources"), py::arg("dtype"), py::arg("width"), py::arg("base_step") = py::none(),
             py::arg("trust") = false, py::arg("extra") = Metadata(), py::arg("progress") = py::none(),
             "Writes the delta file `out` from a served table (kind 'table' or 'hash', with its overlay or None) to "
             "newer rows (dtype, width). sources: dicts of kind 'tensor' (path: checkpoint prefix, key, perhaps start "
             "and length of a part), 'table' (path; both with first and stride of the row numbers), 'embedding' (path: "
             "prefix, key: the table's name) or 'hash' (path). base_step: the served table's step; with trust, rows "
             "last updated before it are not compared, but a sample. Returns counts.");
}

}  // namespace tfctr
