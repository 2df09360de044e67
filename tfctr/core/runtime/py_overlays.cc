#include "tfctr/core/runtime/py_overlays.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/storage/delta_file.h"
#include "tfctr/core/storage/overlay_file.h"
#include "tfctr/core/storage/served_table.h"
#include "tfctr/core/storage/table_space.h"

namespace py = pybind11;

namespace tfctr {
namespace {

using Ints = Int64Keys;
using Bytes = py::array_t<uint8_t, py::array::c_style>;

Metadata ExtraOf(const std::map<std::string, py::object>& given) {
  Metadata extra;
  for (const auto& [key, value] : given) extra[key] = py::str(value);
  return extra;
}

void PutExtra(const Metadata& metadata, py::dict* info) {
  for (const char* key : {"step", "time_ms"}) {
    const auto it = metadata.find(key);
    (*info)[key] = it == metadata.end() ? py::object(py::none()) : py::object(py::int_(py::str(it->second)));
  }
}

template <typename File>
py::dict InfoOf(const File& file, const char* kind) {
  py::dict info;
  info["kind"] = kind;
  info["path"] = file.path();
  info["name"] = file.name();
  info["hashed"] = file.shape().hashed;
  info["dtype"] = DTypeName(file.shape().dtype);
  info["width"] = file.shape().width;
  info["row_bytes"] = file.shape().row_bytes;
  info["rows"] = file.rows();
  info["removed"] = file.removed();
  info["bytes"] = file.bytes();
  info["file_bytes"] = file.container().file_bytes();
  info["fingerprint"] = file.fingerprint();
  info["checksums"] = file.container().has_checksums();
  PutExtra(file.metadata(), &info);
  return info;
}

py::dict DeltaInfo(const DeltaFile& delta) {
  py::dict info = InfoOf(delta, "delta");
  info["table_rows"] = delta.table_rows();
  return info;
}

}  // namespace

Int64Keys KeysOf(const py::object& value, const char* what) {
  const py::object numpy = py::module_::import("numpy");
  py::object array = numpy.attr("asarray")(value);
  if (array.attr("size").cast<int64_t>() == 0) array = array.attr("astype")("int64");
  const std::string dtype = py::str(array.attr("dtype"));
  if (!numpy.attr("can_cast")(array.attr("dtype"), "int64", "safe").cast<bool>() || dtype == "bool") {
    throw py::value_error(std::string(what) + " are " + dtype + ", expected whole numbers that fit int64");
  }
  return array.attr("astype")("int64", py::arg("copy") = false).cast<Int64Keys>();
}

int64_t StoredBytes(const RowShape& shape) {
  return shape.hashed ? StoredRowBytes(shape.dtype, shape.width) : shape.row_bytes;
}

py::dict OverlayInfo(const OverlayFile& overlay) {
  py::dict info = InfoOf(overlay, "overlay");
  info["base_fingerprint"] = overlay.base_fingerprint();
  info["base_rows"] = overlay.base_rows();
  info["added"] = overlay.added();
  info["surrogate"] = false;
  return info;
}

namespace {

// Keys, stored rows (uint8 [n, stored bytes]) and removed keys.
template <typename File>
py::tuple ContentsOf(const File& file) {
  Ints keys(file.rows());
  Ints removed(file.removed());
  const int64_t stored = StoredBytes(file.shape());
  Bytes rows({static_cast<py::ssize_t>(file.rows()), static_cast<py::ssize_t>(stored)});
  std::copy_n(file.keys(), file.rows(), keys.mutable_data());
  std::copy_n(file.removed_keys(), file.removed(), removed.mutable_data());
  for (int64_t i = 0; i < file.rows(); ++i) {
    std::memcpy(rows.mutable_data() + i * stored, file.row(i), static_cast<size_t>(stored));
  }
  return py::make_tuple(keys, rows, removed);
}

py::dict WriteDelta(const py::object& path_object, const std::string& name, const py::object& key_objects,
                    const py::object& row_objects, const py::object& removed_objects, bool hashed,
                    const std::string& dtype, int64_t width, int64_t table_rows,
                    const std::map<std::string, py::object>& metadata) {
  const std::string path = PathOf(path_object);
  const RowShape shape = Unwrap(MakeRowShape(hashed, DTypeFromName(dtype), width));
  const Ints keys = KeysOf(key_objects, "keys");
  const Ints removed = KeysOf(removed_objects, "removed keys");
  const py::array rows = py::array::ensure(row_objects, py::array::c_style);
  if (!rows) throw py::error_already_set();
  const int64_t stored = StoredBytes(shape);
  if (rows.nbytes() != keys.size() * stored) {
    throw py::value_error("delta of table '" + name + "': the rows have " + std::to_string(rows.nbytes()) + " bytes, " +
                          std::to_string(keys.size()) + " rows of " + std::to_string(stored) + " bytes have " +
                          std::to_string(keys.size() * stored));
  }
  Status status;
  Metadata extra = ExtraOf(metadata);
  const int64_t* key_data = keys.data();
  const int64_t* removed_data = removed.data();
  const void* row_data = rows.data();
  {
    py::gil_scoped_release release;
    auto writer = DeltaFileWriter::Create(path, name, shape, table_rows, std::move(extra));
    status = writer.status();
    if (status.ok()) status = writer.value()->Add(key_data, keys.size(), row_data, stored);
    if (status.ok()) status = writer.value()->Remove(removed_data, removed.size());
    if (status.ok()) status = writer.value()->Finish();
  }
  Check(status);
  return DeltaInfo(*Unwrap(DeltaFile::Open(path)));
}

// A base, a previous overlay or none, and deltas; what a merge needs.
struct Merge {
  Merge(const py::object& base_path, const py::object& previous_path, const py::object& delta_paths,
        const std::map<std::string, py::object>& metadata)
      : extra(ExtraOf(metadata)), base_path_(PathOf(base_path)) {
    if (!previous_path.is_none()) previous_path_ = PathOf(previous_path);
    for (const py::handle& path : delta_paths) delta_paths_.push_back(PathOf(path.cast<py::object>()));
  }

  // Opens all; without the GIL.
  Status Open() {
    Result<std::unique_ptr<Container>> container = Container::Open(base_path_);
    if (!container.ok()) return container.status();
    if (container.value()->kind() == FileKind::kHash) {
      TFCTR_RETURN_IF_ERROR(Keep(HashFile::FromContainer(container.Take()), &hash_));
      base = BaseOf(*hash_);
    } else {
      TFCTR_RETURN_IF_ERROR(Keep(TableFile::FromContainer(container.Take()), &table_));
      base = BaseOf(*table_);
    }
    if (!previous_path_.empty()) TFCTR_RETURN_IF_ERROR(Keep(OverlayFile::Open(previous_path_), &previous));
    for (const std::string& path : delta_paths_) {
      std::shared_ptr<const DeltaFile> delta;
      TFCTR_RETURN_IF_ERROR(Keep(DeltaFile::Open(path), &delta));
      deltas.push_back(delta.get());
      opened_.push_back(std::move(delta));
    }
    return Status::Ok();
  }

  TableBase base;
  std::shared_ptr<const OverlayFile> previous;
  std::vector<const DeltaFile*> deltas;
  const Metadata extra;

 private:
  template <typename File>
  static Status Keep(Result<std::shared_ptr<const File>> opened, std::shared_ptr<const File>* file) {
    if (opened.ok()) *file = opened.Take();
    return opened.status();
  }
  const std::string base_path_;
  std::string previous_path_;
  std::vector<std::string> delta_paths_;
  std::shared_ptr<const TableFile> table_;
  std::shared_ptr<const HashFile> hash_;
  std::vector<std::shared_ptr<const DeltaFile>> opened_;
};

py::dict Build(const py::object& path_object, const py::object& base, const py::object& previous,
               const py::object& deltas, const std::map<std::string, py::object>& metadata) {
  const std::string path = PathOf(path_object);
  Merge merge(base, previous, deltas, metadata);
  Status status;
  {
    py::gil_scoped_release release;
    status = merge.Open();
    if (status.ok()) {
      status = BuildOverlay(path, merge.base, merge.previous.get(), merge.deltas, merge.extra, nullptr);
    }
  }
  Check(status);
  return OverlayInfo(*Unwrap(OverlayFile::Open(path)));
}

// tfctr.core._native.MemoryOverlay
class MemoryOverlay {
 public:
  MemoryOverlay(const py::object& base, const py::object& previous, const py::object& deltas,
                const std::map<std::string, py::object>& metadata) {
    Merge merge(base, previous, deltas, metadata);
    Status status;
    {
      py::gil_scoped_release release;
      status = merge.Open();
      if (status.ok()) {
        Result<UniqueFd> built =
            BuildOverlayInMemory(merge.base, merge.previous.get(), merge.deltas, merge.extra, nullptr);
        status = built.status();
        if (status.ok()) fd_ = built.Take();
      }
    }
    Check(status);
    info_ = OverlayInfo(*Unwrap(OverlayFile::Open(Path())));
  }
  std::string Path() const {
    if (!fd_.valid()) throw py::value_error("the overlay in memory was closed");
    return "/proc/self/fd/" + std::to_string(fd_.get());
  }
  py::dict Info() const { return info_; }
  void Close() { fd_.Close(); }

 private:
  UniqueFd fd_;
  py::dict info_;
};

py::list Spaces() {
  py::list spaces;
  for (const TableSpace::Stats& stats : TableSpace::AllStats()) {
    py::dict space;
    space["path"] = stats.path;
    space["memory"] = TableMemoryName(stats.memory);
    space["bytes"] = stats.bytes;
    space["overlays"] = stats.overlays;
    space["overlay_bytes"] = stats.overlay_bytes;
    space["refs"] = stats.refs;
    spaces.append(space);
  }
  return spaces;
}

}  // namespace

void BindOverlays(py::module_& module) {
  const std::map<std::string, py::object> none;
  module.def(
      "write_delta_file", &WriteDelta, py::arg("path"), py::arg("name"), py::arg("keys"), py::arg("rows"),
      py::arg("removed"), py::kw_only(), py::arg("hashed"), py::arg("dtype"), py::arg("width"),
      py::arg("table_rows") = 0, py::arg("metadata") = none,
      "Writes a delta of a table: rows in stored form (any array of so many bytes) by key (a static table: row id), "
      "in any order, and removed keys. dtype, width: a hash file's storage and dim, a static table's dtype and "
      "elements per row; table_rows: a static table's rows. Returns its delta_info.");
  module.def(
      "delta_info", [](const py::object& path) { return DeltaInfo(*Unwrap(DeltaFile::Open(PathOf(path)))); },
      py::arg("path"),
      "Checks footer and sizes of a delta file. Returns name, hashed, dtype, width, row_bytes, rows, removed, "
      "table_rows, "
      "bytes, file_bytes, fingerprint, step, time_ms.");
  module.def(
      "read_delta",
      [](const py::object& path) {
        const auto delta = Unwrap(DeltaFile::Open(PathOf(path)));
        Check(delta->VerifyKeys());
        return ContentsOf(*delta);
      },
      py::arg("path"), "(keys int64 [n], rows as stored uint8 [n, bytes], removed int64 [m]), keys ascending.");
  module.def(
      "build_overlay", &Build, py::arg("path"), py::arg("base"), py::arg("previous"), py::arg("deltas"),
      py::arg("metadata") = none,
      "Writes the overlay of table or hash file `base` that has overlay `previous` (or None), then the deltas in "
      "order, in it. Returns its overlay_info.");
  module.def(
      "overlay_info", [](const py::object& path) { return OverlayInfo(*Unwrap(OverlayFile::Open(PathOf(path)))); },
      py::arg("path"),
      "Checks footer and sizes of an overlay. Returns what delta_info does, and base_fingerprint, base_rows, added.");
  module.def(
      "read_overlay",
      [](const py::object& path) {
        const auto overlay = Unwrap(OverlayFile::Open(PathOf(path)));
        Check(overlay->VerifyIndex());
        return ContentsOf(*overlay);
      },
      py::arg("path"), "(keys, rows as stored, removed keys) of an overlay, as read_delta.");
  py::class_<MemoryOverlay>(module, "MemoryOverlay", "An overlay in anonymous memory, as build_overlay makes it.")
      .def(
          py::init<const py::object&, const py::object&, const py::object&, const std::map<std::string, py::object>&>(),
          py::arg("base"), py::arg("previous"), py::arg("deltas"), py::arg("metadata") = none)
      .def_property_readonly("path", &MemoryOverlay::Path, "Opens it in this process, until close().")
      .def("info", &MemoryOverlay::Info, "Its overlay_info.")
      .def("close", &MemoryOverlay::Close, "Lets go of it; whoever has opened it keeps it.");
  module.def(
      "table_memory", [] { return TableMemoryName(Unwrap(DefaultTableMemory())); },
      "How stores that are opened now keep their tables: 'mapped' or 'huge_pages'.");
  module.def(
      "set_table_memory", [](const std::string& name) { SetDefaultTableMemory(Unwrap(TableMemoryFromName(name))); },
      py::arg("memory"));
  module.def("table_spaces", &Spaces,
             "Address ranges of served tables: path, memory, bytes, overlays, overlay_bytes, refs of each.");
  BindServedTable(module);
}

}  // namespace tfctr
