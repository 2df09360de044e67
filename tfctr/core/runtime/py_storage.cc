#include "tfctr/core/runtime/py_storage.h"

#include <errno.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/storage/crc32c.h"
#include "tfctr/core/storage/delta_file.h"
#include "tfctr/core/storage/hash_file.h"
#include "tfctr/core/storage/other_format.h"
#include "tfctr/core/storage/overlay_file.h"
#include "tfctr/core/storage/store.h"

namespace py = pybind11;

namespace tfctr {

namespace {

PyObject* corrupt_file_type = nullptr;  // tfctr.core._native.CorruptFile; set once when the module is made

[[noreturn]] void RaiseOsError(PyObject* type, int number, const std::string& message) {
  py::object error = py::reinterpret_borrow<py::object>(type)(message);  // no "[Errno n]" in front of the text
  error.attr("errno") = number;
  PyErr_SetObject(type, error.ptr());
  throw py::error_already_set();
}

py::dict InfoOf(const Container& container) {
  py::dict info;
  const Metadata& metadata = container.metadata();
  info["kind"] = FileKindName(container.kind());
  info["path"] = container.path();
  info["bytes"] = container.data_bytes();
  info["file_bytes"] = container.file_bytes();
  info["fingerprint"] = container.fingerprint();
  info["checksums"] = container.has_checksums();
  info["surrogate"] = metadata.count("surrogate") > 0;
  return info;
}

}  // namespace

void Raise(const Status& status) {
  if (status.code == Code::kNotFound) RaiseOsError(PyExc_FileNotFoundError, ENOENT, status.message);
  if (status.code == Code::kIo) RaiseOsError(PyExc_OSError, EIO, status.message);
  if (status.code == Code::kNoSpace) RaiseOsError(PyExc_OSError, ENOSPC, status.message);
  if (status.code == Code::kCorrupt) {
    PyErr_SetString(corrupt_file_type, status.message.c_str());
    throw py::error_already_set();
  }
  if (IsOtherFormat(status)) {
    PyErr_SetString(py::module_::import("tfctr.errors").attr("VersionError").ptr(), status.message.c_str());
    throw py::error_already_set();
  }
  throw py::value_error(status.message);
}

void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

std::string PathOf(const py::object& path) {
  return py::module_::import("os").attr("fspath")(path).cast<std::string>();
}

py::dict FileInfo(const std::string& path) {
  Result<std::unique_ptr<Container>> opened = Container::Open(path);
  if (!opened.ok()) Raise(opened.status());
  py::dict info = InfoOf(*opened.value());
  if (opened.value()->kind() == FileKind::kTable) {
    const auto table = Unwrap(TableFile::FromContainer(opened.Take()));
    info["name"] = table->name();
    info["dtype"] = DTypeName(table->dtype());
    info["shape"] = py::tuple(py::cast(table->shape()));
  } else if (opened.value()->kind() == FileKind::kHash) {
    const auto hash = Unwrap(HashFile::FromContainer(opened.Take()));
    info["name"] = hash->name();
    info["dtype"] = "float32";
    info["storage"] = DTypeName(hash->storage());
    info["shape"] = py::make_tuple(hash->size(), hash->dim());
  } else if (opened.value()->kind() == FileKind::kOverlay) {
    const auto overlay = Unwrap(OverlayFile::FromContainer(opened.Take()));
    info["name"] = overlay->name();
    info["dtype"] = DTypeName(overlay->shape().dtype);
    info["shape"] = py::make_tuple(overlay->rows(), overlay->shape().width);
  } else if (opened.value()->kind() == FileKind::kDelta) {
    const auto delta = Unwrap(DeltaFile::FromContainer(opened.Take()));
    info["name"] = delta->name();
    info["dtype"] = DTypeName(delta->shape().dtype);
    info["shape"] = py::make_tuple(delta->rows(), delta->shape().width);
  } else {
    const auto vocab = Unwrap(VocabFile::FromContainer(opened.Take()));
    info["name"] = vocab->name();
    info["dtype"] = KeyKindName(vocab->key_kind());
    info["shape"] = py::make_tuple(vocab->size());
  }
  return info;
}

namespace {

// Name of a dtype given as a string, an np.dtype or a scalar type such as ml_dtypes.bfloat16.
std::string DTypeNameOf(const py::object& dtype) {
  if (py::isinstance<py::str>(dtype)) return dtype.cast<std::string>();
  return py::module_::import("numpy").attr("dtype")(dtype).attr("name").cast<std::string>();
}

DType TableDType(const std::string& table, const std::string& dtype_name) {
  const DType dtype = DTypeFromName(dtype_name);
  if (dtype == DType::kInvalid) {
    throw py::value_error("table '" + table + "': a table file cannot hold dtype " + dtype_name);
  }
  return dtype;
}

// The array in native byte order and C order; its rank is kept.
py::array Dense(const py::object& value) {
  py::object array = py::module_::import("numpy").attr("asarray")(value);
  const py::object dtype = array.attr("dtype");
  if (!dtype.attr("isnative").cast<bool>()) array = array.attr("astype")(dtype.attr("newbyteorder")("="));
  py::array dense = py::array::ensure(array, py::array::c_style);
  if (!dense) throw py::error_already_set();
  return dense;
}

py::array_t<int64_t> Int64Array(const py::object& value, const char* what) {
  const py::object numpy = py::module_::import("numpy");
  py::object array = numpy.attr("asarray")(value);
  if (array.attr("size").cast<int64_t>() == 0) array = array.attr("astype")("int64");
  const std::string kind = array.attr("dtype").attr("kind").cast<std::string>();
  if ((kind != "i" && kind != "u") || array.attr("ndim").cast<int>() != 1 ||
      array.attr("dtype").attr("name").cast<std::string>() == "uint64") {
    throw py::value_error(std::string(what) + ": expected a one-dimensional array of int64, got " +
                          array.attr("dtype").attr("name").cast<std::string>() + " of rank " +
                          std::to_string(array.attr("ndim").cast<int>()));
  }
  return py::array_t<int64_t, py::array::c_style | py::array::forcecast>::ensure(array);
}

py::dict WriteTable(const py::object& path_object, const std::string& name, const py::object& value) {
  const std::string path = PathOf(path_object);
  const py::array array = Dense(value);
  const DType dtype = TableDType(name, DTypeNameOf(array.dtype()));
  const std::vector<int64_t> shape(array.shape(), array.shape() + array.ndim());
  Status status;
  {
    py::gil_scoped_release release;
    Result<std::unique_ptr<TableWriter>> writer = TableWriter::Create(path, name, dtype, shape);
    status = writer.status();
    if (status.ok()) status = writer.value()->Append(array.data(), static_cast<uint64_t>(array.nbytes()));
    if (status.ok()) status = writer.value()->Finish();
  }
  Check(status);
  return FileInfo(path);
}

py::dict WriteSurrogate(const py::object& path_object, const std::string& name, const py::object& dtype_object,
                        const std::vector<int64_t>& shape, const py::object& row_ids, const py::object& rows) {
  const std::string path = PathOf(path_object);
  const std::string dtype_name = DTypeNameOf(dtype_object);
  const DType dtype = TableDType(name, dtype_name);
  const py::array_t<int64_t> ids = Int64Array(row_ids, "row_ids");
  const py::array data = Dense(rows);
  if (data.size() > 0 && DTypeNameOf(data.dtype()) != dtype_name) {
    throw py::value_error("surrogate table '" + name + "': rows are " + DTypeNameOf(data.dtype()) + ", expected " +
                          dtype_name);
  }
  int64_t width = 1;
  for (size_t i = 1; i < shape.size(); ++i) width *= shape[i];
  if (data.size() != ids.size() * width) {
    throw py::value_error("surrogate table '" + name + "': " + std::to_string(ids.size()) + " row ids of width " +
                          std::to_string(width) + ", but " + std::to_string(data.size()) + " values");
  }
  Status status;
  {
    py::gil_scoped_release release;
    status = WriteSurrogateTable(path, name, dtype, shape, ids.data(), ids.size(), data.data());
  }
  Check(status);
  return FileInfo(path);
}

// All bytes of a file, and that the index of a hash file or an overlay finds every key.
Status VerifyAll(const std::string& path) {
  Result<std::unique_ptr<Container>> container = Container::Open(path);
  if (!container.ok()) return container.status();
  TFCTR_RETURN_IF_ERROR(container.value()->VerifyChecksums());
  const FileKind kind = container.value()->kind();
  if (kind == FileKind::kHash) {
    const auto hash = HashFile::FromContainer(container.Take());
    return hash.ok() ? hash.value()->VerifyIndex() : hash.status();
  }
  if (kind == FileKind::kOverlay) {
    const auto overlay = OverlayFile::FromContainer(container.Take());
    return overlay.ok() ? overlay.value()->VerifyIndex() : overlay.status();
  }
  if (kind == FileKind::kDelta) {
    const auto delta = DeltaFile::FromContainer(container.Take());
    return delta.ok() ? delta.value()->VerifyKeys() : delta.status();
  }
  return Status::Ok();
}

void VerifyFile(const py::object& path_object) {
  const std::string path = PathOf(path_object);
  Status status;
  {
    py::gil_scoped_release release;
    status = VerifyAll(path);
  }
  Check(status);
}

// Keys of a vocabulary as Python gives them: an integer array (or list of int), or a sequence of bytes or str.
// String views point into objects that `owner` keeps alive.
struct Keys {
  KeyKind kind = KeyKind::kString;
  std::vector<std::string_view> strings;
  py::array_t<int64_t> ints;
  py::object owner;
  int64_t size() const { return kind == KeyKind::kString ? static_cast<int64_t>(strings.size()) : ints.size(); }
};

std::string_view BytesOrText(PyObject* item, size_t i) {
  Py_ssize_t length = 0;
  if (PyBytes_Check(item)) {
    return std::string_view(PyBytes_AS_STRING(item), static_cast<size_t>(PyBytes_GET_SIZE(item)));
  }
  if (PyUnicode_Check(item)) {
    const char* text = PyUnicode_AsUTF8AndSize(item, &length);
    if (text == nullptr) throw py::error_already_set();
    return std::string_view(text, static_cast<size_t>(length));
  }
  throw py::value_error("key " + std::to_string(i) + " is a " + Py_TYPE(item)->tp_name + ", expected bytes or str");
}

Keys ParseKeys(const py::object& keys) {
  Keys parsed;
  py::object sequence = keys;
  if (py::isinstance<py::array>(keys)) {
    const std::string kind = keys.attr("dtype").attr("kind").cast<std::string>();
    if (kind == "i" || kind == "u") {
      parsed.kind = KeyKind::kInt64;
      parsed.ints = Int64Array(keys, "keys");
      return parsed;
    }
    if (keys.attr("ndim").cast<int>() != 1) throw py::value_error("keys: expected a one-dimensional array");
    sequence = keys.attr("tolist")();
  }
  PyObject* fast = PySequence_Fast(sequence.ptr(), "keys: expected a sequence");
  if (fast == nullptr) throw py::error_already_set();
  parsed.owner = py::reinterpret_steal<py::object>(fast);
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
  PyObject** items = PySequence_Fast_ITEMS(fast);
  if (count > 0 && PyLong_Check(items[0])) {
    parsed.kind = KeyKind::kInt64;
    parsed.ints = Int64Array(parsed.owner, "keys");
    return parsed;
  }
  parsed.strings.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) parsed.strings.push_back(BytesOrText(items[i], static_cast<size_t>(i)));
  return parsed;
}

Status WriteKeys(const std::string& path, const std::string& name, const Keys& keys, const int64_t* ints,
                 const int64_t* values) {
  Result<std::unique_ptr<VocabWriter>> writer = VocabWriter::Create(path, name, keys.kind);
  if (!writer.ok()) return writer.status();
  const int64_t n = keys.size();
  for (int64_t i = 0; i < n; ++i) {
    TFCTR_RETURN_IF_ERROR(keys.kind == KeyKind::kString
                              ? writer.value()->Add(keys.strings[static_cast<size_t>(i)], values[i])
                              : writer.value()->Add(ints[i], values[i]));
  }
  return writer.value()->Finish();
}

py::dict WriteVocab(const py::object& path_object, const std::string& name, const py::object& key_objects,
                    const py::object& value_objects) {
  const std::string path = PathOf(path_object);
  const Keys keys = ParseKeys(key_objects);
  const py::array_t<int64_t> values = Int64Array(value_objects, "values");
  if (values.size() != keys.size()) {
    throw py::value_error("vocabulary '" + name + "': " + std::to_string(keys.size()) + " keys but " +
                          std::to_string(values.size()) + " values");
  }
  Status status;
  {
    const int64_t* ints = keys.ints.data();
    py::gil_scoped_release release;
    status = WriteKeys(path, name, keys, ints, values.data());
  }
  Check(status);
  return FileInfo(path);
}

py::array_t<int64_t> VocabFind(const py::object& path_object, const py::object& key_objects, int64_t default_value) {
  const auto vocab = Unwrap(Store::Global().Vocab(PathOf(path_object)));
  const Keys keys = ParseKeys(key_objects);
  if (keys.size() > 0 && keys.kind != vocab->key_kind()) {
    throw py::value_error("vocabulary '" + vocab->name() + "' has " + KeyKindName(vocab->key_kind()) +
                          " keys, the keys given are " + KeyKindName(keys.kind));
  }
  py::array_t<int64_t> values(keys.size());
  int64_t* out = values.mutable_data();
  if (keys.kind == KeyKind::kString) {
    vocab->FindBatch(keys.strings.data(), keys.size(), default_value, out);
  } else {
    vocab->FindBatch(keys.ints.data(), keys.size(), default_value, out);
  }
  return values;
}

py::object VocabSampleKeys(const py::object& path_object, int64_t n) {
  const auto vocab = Unwrap(Store::Global().Vocab(PathOf(path_object)));
  if (n < 0) throw py::value_error("n must not be negative, got " + std::to_string(n));
  const int64_t count = std::min(n, vocab->size());
  const auto entry = [&](int64_t i) {  // evenly spread, first entry included, without overflow
    return static_cast<int64_t>(static_cast<__int128>(i) * vocab->size() / count);
  };
  int64_t value = 0;
  const std::string damaged = "'" + vocab->path() + "' is damaged: it has entries that cannot be read";
  if (vocab->key_kind() == KeyKind::kInt64) {
    py::array_t<int64_t> keys(count);
    for (int64_t i = 0; i < count; ++i) {
      if (!vocab->EntryAt(entry(i), keys.mutable_data() + i, &value)) Raise(Status::Corrupt(damaged));
    }
    return keys;
  }
  py::list keys;
  for (int64_t i = 0; i < count; ++i) {
    std::string_view key;
    if (!vocab->EntryAt(entry(i), &key, &value)) Raise(Status::Corrupt(damaged));
    keys.append(py::bytes(key.data(), key.size()));
  }
  return keys;
}

py::dict StoreStats() {
  py::list files;
  uint64_t bytes = 0;
  int64_t refs = 0;
  for (const Store::FileStats& file : Store::Global().Stats()) {
    py::dict dict;
    dict["kind"] = FileKindName(file.kind);
    dict["path"] = file.path;
    dict["name"] = file.name;
    dict["bytes"] = file.bytes;
    dict["refs"] = file.refs;
    files.append(dict);
    bytes += file.bytes;
    refs += file.refs;
  }
  py::dict stats;
  stats["open_files"] = files.size();
  stats["bytes"] = bytes;
  stats["refs"] = refs;
  stats["files"] = files;
  return stats;
}

uint32_t MaskedCrc32c(const py::buffer& data) {
  const py::buffer_info info = data.request();
  return MaskCrc32c(Crc32c(info.ptr, static_cast<size_t>(info.size * info.itemsize)));
}

}  // namespace

void BindStorage(py::module_& module) {
  static py::exception<void> corrupt(module, "CorruptFile");
  corrupt_file_type = corrupt.ptr();
  module.def("write_table", &WriteTable, py::arg("path"), py::arg("name"), py::arg("array"),
             "Writes an array (any rank, C order in the file) as a table file; returns its file_info.");
  module.def("write_surrogate_table", &WriteSurrogate, py::arg("path"), py::arg("name"), py::arg("dtype"),
             py::arg("shape"), py::arg("row_ids"), py::arg("rows"),
             "Writes a sparse table file of `shape`: `rows` at `row_ids` (int64), zero elsewhere, no checksums.");
  module.def(
      "file_info", [](const py::object& path) { return FileInfo(PathOf(path)); }, py::arg("path"),
      "Checks footer and sizes of a table or vocabulary file. Returns kind, name, dtype (for a vocabulary, of the "
      "keys), shape, bytes, file_bytes, fingerprint, checksums, surrogate, path.");
  module.def("verify_file", &VerifyFile, py::arg("path"),
             "Compares every block's checksum, read with pread, and looks every key of an index up; raises CorruptFile "
             "naming what is damaged.");
  module.def("write_vocab", &WriteVocab, py::arg("path"), py::arg("name"), py::arg("keys"), py::arg("values"),
             "Writes a vocabulary file from unique keys (bytes, str or int64) to int64 values; returns its file_info.");
  module.def("vocab_find", &VocabFind, py::arg("path"), py::arg("keys"), py::arg("default_value") = -1,
             "Values (int64) of keys, `default_value` for those that are not there.");
  module.def("vocab_sample_keys", &VocabSampleKeys, py::arg("path"), py::arg("n"),
             "At most n keys, evenly spread over the entries in file order: a list of bytes or an int64 array.");
  BindCheckpoint(module);
  BindHashTables(module);
  BindDiff(module);
  BindCheckpointTools(module);
  module.def("store_stats", &StoreStats, "Open files of this process: open_files, bytes, refs, files.");
  module.def("masked_crc32c", &MaskedCrc32c, py::arg("data"), "The checksum of a buffer as checkpoints store it.");
}

}  // namespace tfctr
