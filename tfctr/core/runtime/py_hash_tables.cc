// Python face of hash files: writing them, and looking keys up in one.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "external/farmhash_archive/src/farmhash.h"
#include "tfctr/core/lookup/row_narrowing.h"
#include "tfctr/core/lookup/row_widening.h"
#include "tfctr/core/runtime/hash_from_checkpoint.h"
#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/hash_file_writer.h"

namespace py = pybind11;

namespace tfctr {
namespace {

using Floats = py::array_t<float, py::array::c_style>;
using Ints = py::array_t<int64_t, py::array::c_style>;
using Bytes = py::array_t<uint8_t, py::array::c_style>;

constexpr size_t kFindBlock = 1 << 16;  // keys between two looks at the rows: their numbers stay in the cache

// Any array of whole numbers that int64 holds, or an empty list.
Ints KeysOf(const py::object& value) {
  const py::object numpy = py::module_::import("numpy");
  py::object array = numpy.attr("asarray")(value);
  if (array.attr("size").cast<int64_t>() == 0) array = array.attr("astype")("int64");
  const std::string dtype = py::str(array.attr("dtype"));
  if (!numpy.attr("can_cast")(array.attr("dtype"), "int64", "safe").cast<bool>() || dtype == "bool") {
    throw py::value_error("keys are " + dtype + ", expected whole numbers that fit int64 (fingerprints of strings)");
  }
  return array.attr("astype")("int64", py::arg("copy") = false).cast<Ints>();
}

DType StorageOf(const std::string& table, const std::string& storage) {
  const DType dtype = DTypeFromName(storage);
  if (StoredRowBytes(dtype, 1) == 0) {
    throw py::value_error("table '" + table + "': storage is '" + storage +
                          "', expected float32, float16, bfloat16 or int8");
  }
  return dtype;
}

// Rows as Python gives them: float32 [n, dim], stored as asked; or uint8 [n, stored bytes], stored already.
class GivenRows {
 public:
  GivenRows(std::string table, int64_t dim, DType storage)
      : table_(std::move(table)),
        dim_(dim),
        storage_(storage),
        stored_(StoredRowBytes(storage, dim)),
        narrow_(RowNarrowerOf(storage)) {}

  // Needs the GIL. `what` begins messages.
  py::array Checked(const py::object& rows, int64_t n, const std::string& what) const {
    py::object array = py::module_::import("numpy").attr("ascontiguousarray")(rows);
    const std::string dtype = py::str(array.attr("dtype"));
    const auto shape = array.attr("shape").cast<std::vector<int64_t>>();
    const bool floats = dtype == "float32" && shape == std::vector<int64_t>{n, dim_};
    const bool bytes = dtype == "uint8" && shape == std::vector<int64_t>{n, stored_};
    if (floats || bytes) return array.cast<py::array>();
    throw py::value_error("table '" + table_ + "': " + what + " are " + dtype + " " +
                          std::string(py::str(array.attr("shape"))) + ", expected float32 (" + std::to_string(n) +
                          ", " + std::to_string(dim_) + ") or, as stored, uint8 (" + std::to_string(n) + ", " +
                          std::to_string(stored_) + ")");
  }

  // Without the GIL.
  Status Store(const void* data, bool floats, int64_t from, int64_t n, const std::string& what, uint8_t* out) {
    if (!floats || narrow_ == nullptr) {
      const size_t bytes = static_cast<size_t>(n * stored_);
      if (bytes > 0) std::memcpy(out, static_cast<const uint8_t*>(data) + from * stored_, bytes);
      return Status::Ok();
    }
    const float* rows = static_cast<const float*>(data) + from * dim_;
    for (int64_t i = 0; i < n; ++i) {
      const std::string wrong = narrow_(rows + i * dim_, dim_, out + i * stored_, &max_abs_error_);
      if (wrong.empty()) continue;
      return Status::Invalid("table '" + table_ + "': " + what + " " + wrong + ", so it can't be stored as " +
                             DTypeName(storage_));
    }
    return Status::Ok();
  }

  int64_t stored() const { return stored_; }
  double max_abs_error() const { return max_abs_error_; }

 private:
  const std::string table_;
  const int64_t dim_;
  const DType storage_;
  const int64_t stored_;
  const RowNarrower narrow_;
  double max_abs_error_ = 0.0;
};

bool IsFloats(const py::array& array) { return array.dtype().kind() == 'f'; }

// What a callback into Python raised, kept while native code returns.
struct Raised {
  std::exception_ptr error;

  template <typename Call>
  bool Try(const Call& call) {
    py::gil_scoped_acquire acquire;
    try {
      call();
      return true;
    } catch (...) {
      error = std::current_exception();
      return false;
    }
  }
};

// Ctrl-C stops a long build. progress(done, total): bytes of rows.
HashFileProgress ProgressOf(const py::object& progress, Raised* raised) {
  return [&progress, raised](uint64_t done, uint64_t total) {
    return raised->Try([&] {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      if (!progress.is_none()) progress(done, total);
    });
  };
}

// Runs without the GIL; raises what a callback raised, else what the status says.
template <typename Build>
void Run(Raised* raised, const Build& build) {
  Status status;
  {
    py::gil_scoped_release release;
    status = build();
  }
  if (raised->error) std::rethrow_exception(raised->error);
  Check(status);
}

py::dict InfoOf(const HashFile& file) {
  py::dict info;
  const Metadata& metadata = file.metadata();
  info["kind"] = "hash";
  info["path"] = file.path();
  info["name"] = file.name();
  info["dtype"] = "float32";
  info["shape"] = py::make_tuple(file.size(), file.dim());
  info["rows"] = file.size();
  info["dim"] = file.dim();
  info["storage"] = DTypeName(file.storage());
  info["row_bytes"] = file.row_bytes();
  info["lines"] = file.index().line_count;
  info["bytes"] = file.bytes();
  info["file_bytes"] = file.container().file_bytes();
  info["fingerprint"] = file.fingerprint();
  info["checksums"] = file.has_checksums();
  info["surrogate"] = metadata.count("surrogate") > 0;
  for (const char* key : {"step", "time_ms", "source", "key_dtype", "config"}) {
    const auto it = metadata.find(key);
    info[key] = it == metadata.end() ? py::object(py::none()) : py::object(py::str(it->second));
  }
  for (const char* key : {"step", "time_ms"}) {
    if (!info[key].is_none()) info[key] = py::int_(info[key]);
  }
  return info;
}

py::dict HashInfo(const py::object& path) { return InfoOf(*Unwrap(HashFile::Open(PathOf(path)))); }

Metadata ExtraOf(const std::map<std::string, py::object>& given) {
  Metadata extra;
  for (const auto& [key, value] : given) extra[key] = py::str(value);
  return extra;
}

py::dict Build(const py::object& path_object, const std::string& name, const py::object& key_objects,
               const py::object& rows, const py::object& default_object, const py::object& dim_object,
               const std::string& storage_name, const std::map<std::string, py::object>& metadata,
               const py::object& progress, uint64_t window_bytes) {
  const std::string path = PathOf(path_object);
  Ints keys = KeysOf(key_objects);
  if (keys.ndim() != 1) throw py::value_error("table '" + name + "': keys are of rank " + std::to_string(keys.ndim()));
  HashFileSpec spec;
  spec.name = name;
  spec.storage = StorageOf(name, storage_name);
  spec.extra = ExtraOf(metadata);
  spec.window_bytes = window_bytes;
  const bool callable = PyCallable_Check(rows.ptr()) != 0;
  if (!dim_object.is_none()) {
    spec.dim = dim_object.cast<int64_t>();
  } else if (callable) {
    throw py::value_error("table '" + name + "': rows are a function, so dim must be given");
  } else {
    const auto shape = py::module_::import("numpy").attr("shape")(rows).cast<std::vector<int64_t>>();
    spec.dim = shape.size() == 2 ? shape[1] : 0;
  }
  Check(CheckHashFileSpec(spec, keys.size()));
  GivenRows given(name, spec.dim, spec.storage);
  py::object no_default = default_object;
  if (no_default.is_none()) no_default = py::module_::import("numpy").attr("zeros")(spec.dim, "float32");
  const py::array default_values = given.Checked(no_default.attr("reshape")(1, -1), 1, "the default row's values");
  std::vector<uint8_t> default_row(static_cast<size_t>(given.stored()));
  Check(given.Store(default_values.data(), IsFloats(default_values), 0, 1, "the default row", default_row.data()));
  py::array whole;
  if (!callable) whole = given.Checked(rows, keys.size(), "rows");
  const void* data = callable ? nullptr : whole.data();
  const bool floats = !callable && IsFloats(whole);
  Raised raised;
  const HashRowReader read = [&](int64_t first, int64_t n, uint8_t* out) -> Status {
    const std::string what = "one of rows " + std::to_string(first) + " to " + std::to_string(first + n - 1);
    if (!callable) return given.Store(data, floats, first, n, what, out);
    Status status;
    const bool called = raised.Try([&] {
      const py::array block = given.Checked(rows(first, n), n, "rows from the function");
      status = given.Store(block.data(), IsFloats(block), 0, n, what, out);
    });
    return called ? status : Status::Invalid("stopped");
  };
  std::vector<int64_t> owned(keys.data(), keys.data() + keys.size());
  keys = Ints();
  Run(&raised, [&] {
    return WriteHashFile(path, spec, std::move(owned), default_row.data(), read, ProgressOf(progress, &raised));
  });
  py::dict info = HashInfo(path_object);
  info["max_abs_error"] = given.max_abs_error();
  return info;
}

py::dict BuildFromCheckpoint(const py::object& prefix_object, const std::string& table, const py::object& path_object,
                             const std::string& storage_name, const py::object& progress,
                             const py::object& name_object) {
  const std::string prefix = PathOf(prefix_object);
  const std::string path = PathOf(path_object);
  const std::string name = name_object.is_none() ? table : name_object.cast<std::string>();
  const DType storage = StorageOf(name, storage_name);
  HashBuild build;
  Raised raised;
  Run(&raised, [&] {
    Result<HashBuild> built = HashFileFromCheckpoint(prefix, table, path, name, storage, ProgressOf(progress, &raised));
    if (built.ok()) build = built.value();
    return built.status();
  });
  py::dict info = HashInfo(path_object);
  info["max_abs_error"] = build.max_abs_error;
  return info;
}

// The int64 keys of strings (bytes, or str as UTF-8): what tf.fingerprint gives.
Ints Fingerprints(const std::vector<std::string>& texts) {
  Ints keys(static_cast<py::ssize_t>(texts.size()));
  int64_t* to = keys.mutable_data();
  for (const std::string& text : texts) *to++ = static_cast<int64_t>(::util::Fingerprint64(text.data(), text.size()));
  return keys;
}

// tfctr.core._native.HashTable
class HashTable {
 public:
  explicit HashTable(const py::object& path)
      : file_(Unwrap(HashFile::Open(PathOf(path)))), widen_(RowWidenerOf(file_->storage())) {}

  const HashFile& file() const { return *file_; }
  py::dict Info() const { return InfoOf(*file_); }

  Ints Find(const py::object& key_objects) const {
    const Ints keys = KeysOf(key_objects);
    Ints numbers(ShapeOf(keys));
    const int64_t* from = keys.data();
    int64_t* to = numbers.mutable_data();
    const size_t n = static_cast<size_t>(keys.size());
    py::gil_scoped_release release;
    file_->index().Find(from, n, to);
    return numbers;
  }

  Floats Rows(const py::object& key_objects) const {
    const Ints keys = KeysOf(key_objects);
    std::vector<py::ssize_t> shape = ShapeOf(keys);
    shape.push_back(file_->dim());
    Floats rows(shape);
    const int64_t* from = keys.data();
    float* out = rows.mutable_data();
    const size_t n = static_cast<size_t>(keys.size());
    py::gil_scoped_release release;
    std::vector<int64_t> numbers(std::min(n, kFindBlock));
    for (size_t begin = 0; begin < n; begin += kFindBlock) {
      const size_t count = std::min(kFindBlock, n - begin);
      file_->index().Find(from + begin, count, numbers.data());
      for (size_t i = 0; i < count; ++i, out += file_->dim()) {
        if (i + kRowsAhead < count) __builtin_prefetch(Row(numbers[i + kRowsAhead]));
        widen_(Row(numbers[i]), file_->dim(), out);
      }
    }
    return rows;
  }

  // By row number.
  Ints Keys(int64_t first, int64_t n) const {
    CheckRange(first, n, file_->size());
    Ints keys(n);
    Check(file_->Keys(first, n, keys.mutable_data()));
    return keys;
  }

  Floats Values(int64_t first, int64_t n) const {
    CheckRange(first, n, file_->size() + 1);
    Floats values({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(file_->dim())});
    float* out = values.mutable_data();
    py::gil_scoped_release release;
    for (int64_t row = first; row < first + n; ++row, out += file_->dim()) widen_(Row(row), file_->dim(), out);
    return values;
  }

  Bytes Stored(int64_t first, int64_t n) const {
    CheckRange(first, n, file_->size() + 1);
    const int64_t stored = StoredRowBytes(file_->storage(), file_->dim());
    Bytes bytes({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(stored)});
    uint8_t* out = bytes.mutable_data();
    py::gil_scoped_release release;
    for (int64_t row = first; row < first + n; ++row, out += stored) {
      std::memcpy(out, Row(row), static_cast<size_t>(stored));
    }
    return bytes;
  }

  void Verify() const {
    Status status;
    {
      py::gil_scoped_release release;
      status = file_->VerifyChecksums();
      if (status.ok()) status = file_->VerifyIndex();
    }
    Check(status);
  }

 private:
  static constexpr size_t kRowsAhead = 16;

  static std::vector<py::ssize_t> ShapeOf(const py::array& array) {
    return std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim());
  }
  const uint8_t* Row(int64_t number) const { return file_->rows() + number * file_->row_bytes(); }
  void CheckRange(int64_t first, int64_t n, int64_t rows) const {
    if (first >= 0 && n >= 0 && first <= rows && n <= rows - first) return;
    throw py::index_error("table '" + file_->name() + "': " + std::to_string(n) + " rows from " +
                          std::to_string(first) + ", it has " + std::to_string(rows));
  }

  std::shared_ptr<const HashFile> file_;
  RowWidener widen_;
};

}  // namespace

void BindHashTables(py::module_& module) {
  module.def(
      "build_hash_table", &Build, py::arg("path"), py::arg("name"), py::arg("keys"), py::arg("rows"),
      py::arg("default_row") = py::none(), py::arg("dim") = py::none(), py::arg("storage") = "float32",
      py::arg("metadata") = std::map<std::string, py::object>(), py::arg("progress") = py::none(),
      py::arg("window_bytes") = 0,
      "Writes a hash file from unique int64 keys [N] and their rows: float32 [N, dim], stored as `storage`; or "
      "uint8 [N, stored bytes], stored already; or a function (first, n) -> such a block (then dim is needed; it "
      "is asked for the same rows again). progress(done, total) gets bytes. Returns its hash_info with "
      "max_abs_error.");
  module.def("build_hash_table_from_checkpoint", &BuildFromCheckpoint, py::arg("prefix"), py::arg("table_name"),
             py::arg("path"), py::arg("storage") = "float32", py::arg("progress") = py::none(),
             py::arg("name") = py::none(),
             "Writes a hash file from the embedding variable that a checkpoint calls `table_name` (its tensors "
             "`table_name`/keys, /values, /config). Returns its hash_info with max_abs_error.");
  module.def("hash_info", &HashInfo, py::arg("path"),
             "Checks footer, sizes and index header of a hash file. Returns what file_info does, and rows, dim, "
             "storage, row_bytes, lines, step, time_ms, source, key_dtype, config (JSON).");
  module.def("fingerprint64", &Fingerprints, py::arg("texts"),
             "int64 keys of a list of str or bytes, as tables with string keys have them (farmhash64).");
  py::class_<HashTable>(module, "HashTable", "An open hash file.")
      .def(py::init<const py::object&>(), py::arg("path"))
      .def_property_readonly("name", [](const HashTable& table) { return table.file().name(); })
      .def_property_readonly("dim", [](const HashTable& table) { return table.file().dim(); })
      .def("__len__", [](const HashTable& table) { return table.file().size(); })
      .def("info", &HashTable::Info, "As hash_info.")
      .def("find", &HashTable::Find, py::arg("keys"),
           "Row numbers (int64) of keys of any shape; len(table), the number of the default row, for unknown ones.")
      .def("rows", &HashTable::Rows, py::arg("keys"), "float32 keys.shape + [dim]; unknown keys get the default row.")
      .def("keys", &HashTable::Keys, py::arg("first"), py::arg("n"), "int64 [n]: keys of rows first, first + 1, ...")
      .def("values", &HashTable::Values, py::arg("first"), py::arg("n"),
           "float32 [n, dim]: rows by number; len(table) is the default row.")
      .def("stored", &HashTable::Stored, py::arg("first"), py::arg("n"), "The same rows as they are stored, uint8.")
      .def("verify", &HashTable::Verify,
           "Compares every checksum and reads the whole index; raises CorruptFile naming what is damaged.");
}

}  // namespace tfctr
