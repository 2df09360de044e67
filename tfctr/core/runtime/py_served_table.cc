// Python face of served tables: rows by key, overlays included.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tfctr/core/lookup/row_widening.h"
#include "tfctr/core/runtime/py_overlays.h"
#include "tfctr/core/runtime/py_storage_support.h"
#include "tfctr/core/storage/served_table.h"
#include "tfctr/core/storage/store.h"

namespace py = pybind11;

namespace tfctr {
namespace {

using Ints = Int64Keys;
using Bytes = py::array_t<uint8_t, py::array::c_style>;
using Floats = py::array_t<float, py::array::c_style>;

// tfctr.core._native.ServedTable
class PyServedTable {
 public:
  PyServedTable(const py::object& base_path, const py::object& overlay_path, const std::string& memory_name,
                const std::string& storage) {
    const TableMemory memory = Unwrap(TableMemoryFromName(memory_name));
    const std::string path = PathOf(base_path);
    std::shared_ptr<const OverlayFile> overlay;
    if (!overlay_path.is_none()) overlay = Unwrap(Store::Global().Overlay(PathOf(overlay_path)));
    const FileKind kind = Unwrap(Container::Open(path))->kind();
    py::gil_scoped_release release;
    Result<std::shared_ptr<const ServedTable>> made = Open(path, kind, std::move(overlay), memory);
    py::gil_scoped_acquire acquire;
    served_ = Unwrap(std::move(made));
    const RowShape& shape = served_->shape();
    DType stored = shape.dtype;
    width_ = shape.width;
    if (!storage.empty() && !shape.hashed) {  // a static table says nothing about how its rows are read
      stored = DTypeFromName(storage);
      if (stored == DType::kInt8) width_ -= 4;
    }
    if (!shape.hashed && shape.dtype == DType::kInt8) stored = DType::kInvalid;  // plain numbers, without a scale
    widen_ = width_ > 0 ? RowWidenerOf(stored) : nullptr;
  }

  const ServedTable& table() const { return *served_; }
  int64_t width() const { return width_; }

  Ints Find(const py::object& key_objects) const {
    const Ints keys = KeysOf(key_objects, "keys");
    Ints numbers(ShapeOf(keys));
    const int64_t* from = keys.data();
    int64_t* to = numbers.mutable_data();
    const size_t n = static_cast<size_t>(keys.size());
    CheckIds(from, n);
    py::gil_scoped_release release;
    served_->Find(from, n, to);
    return numbers;
  }

  // Which keys have a row of their own.
  py::array_t<bool> Contains(const py::object& key_objects) const {
    const Ints keys = KeysOf(key_objects, "keys");
    py::array_t<bool> held(ShapeOf(keys));
    const int64_t* from = keys.data();
    bool* to = held.mutable_data();
    const size_t n = static_cast<size_t>(keys.size());
    py::gil_scoped_release release;
    if (!served_->hashed()) {
      for (size_t i = 0; i < n; ++i) to[i] = from[i] >= 0 && from[i] < served_->base_rows();
      return held;
    }
    std::vector<int64_t> numbers(n);
    served_->Find(from, n, numbers.data());
    for (size_t i = 0; i < n; ++i) to[i] = numbers[i] != served_->base_rows() - 1;
    return held;
  }

  Floats Rows(const py::object& key_objects) const {
    if (widen_ == nullptr) {
      throw py::value_error("table '" + served_->name() + "': rows of " + DTypeName(served_->shape().dtype) +
                            " are no float32 rows; use stored()");
    }
    return Gather<Floats>(key_objects, width_, [this](const uint8_t* row, float* out) { widen_(row, width_, out); });
  }

  Bytes Stored(const py::object& key_objects) const {
    const int64_t stored = StoredBytes(served_->shape());
    return Gather<Bytes>(key_objects, stored, [stored](const uint8_t* row, uint8_t* out) {
      std::memcpy(out, row, static_cast<size_t>(stored));
    });
  }

  // Every key that has a row: those of the base that are not removed, in the base's order, then new ones.
  Ints Keys() const {
    std::vector<int64_t> keys(static_cast<size_t>(served_->base().rows));
    Status status;
    {
      py::gil_scoped_release release;
      status = CollectKeys(&keys);
    }
    Check(status);
    return Ints(static_cast<py::ssize_t>(keys.size()), keys.data());
  }

  py::dict Info() const {
    py::dict info;
    const OverlayFile* overlay = served_->overlay_file().get();
    info["name"] = served_->name();
    info["path"] = served_->path();
    info["hashed"] = served_->hashed();
    info["dtype"] = DTypeName(served_->shape().dtype);
    info["width"] = served_->shape().width;
    info["row_bytes"] = served_->row_bytes();
    info["rows"] = served_->size();
    info["base_rows"] = served_->base().rows;
    info["memory"] = TableMemoryName(served_->memory());
    info["fingerprint"] = served_->fingerprint();
    info["overlay"] = overlay == nullptr ? py::object(py::none()) : py::object(OverlayInfo(*overlay));
    return info;
  }

  // The rows of a static table with the overlay's in them, as uint8 [rows, stored bytes]; read-only, nothing copied.
  static py::array Dense(const py::object& self) {
    const PyServedTable& table = self.cast<const PyServedTable&>();
    const uint8_t* const data = Unwrap(table.served_->Dense());
    const py::ssize_t rows = table.served_->base().rows;
    py::array array(py::dtype::of<uint8_t>(), {rows, static_cast<py::ssize_t>(table.served_->row_bytes())}, {}, data,
                    self);
    array.attr("setflags")(py::arg("write") = false);
    return array;
  }

 private:
  static constexpr size_t kBlock = 1 << 14;
  static constexpr size_t kRowsAhead = 16;

  static std::vector<py::ssize_t> ShapeOf(const py::array& array) {
    return std::vector<py::ssize_t>(array.shape(), array.shape() + array.ndim());
  }

  static Result<std::shared_ptr<const ServedTable>> Open(const std::string& path, FileKind kind,
                                                         std::shared_ptr<const OverlayFile> overlay,
                                                         TableMemory memory) {
    if (kind == FileKind::kHash) {
      auto hash = Store::Global().Hash(path);
      if (!hash.ok()) return hash.status();
      return ServedTable::Make(hash.Take(), std::move(overlay), memory);
    }
    auto table = Store::Global().Table(path);
    if (!table.ok()) return table.status();
    return ServedTable::Make(table.Take(), std::move(overlay), memory);
  }

  void CheckIds(const int64_t* ids, size_t n) const {
    if (served_->hashed()) return;
    for (size_t i = 0; i < n; ++i) {
      if (ids[i] >= 0 && ids[i] < served_->base_rows()) continue;
      throw py::index_error("table '" + served_->name() + "': row " + std::to_string(ids[i]) + " is not in [0, " +
                            std::to_string(served_->base_rows()) + ")");
    }
  }

  template <typename Array, typename Put>
  Array Gather(const py::object& key_objects, int64_t columns, const Put& put) const {
    const Ints keys = KeysOf(key_objects, "keys");
    std::vector<py::ssize_t> shape = ShapeOf(keys);
    shape.push_back(columns);
    Array rows(shape);
    auto* out = rows.mutable_data();
    const int64_t* from = keys.data();
    const size_t n = static_cast<size_t>(keys.size());
    CheckIds(from, n);
    py::gil_scoped_release release;
    std::vector<int64_t> numbers(std::min(n, kBlock));
    for (size_t begin = 0; begin < n; begin += kBlock) {
      const size_t count = std::min(kBlock, n - begin);
      served_->Find(from + begin, count, numbers.data());
      for (size_t i = 0; i < count; ++i, out += columns) {
        if (i + kRowsAhead < count) __builtin_prefetch(Row(numbers[i + kRowsAhead]));
        put(Row(numbers[i]), out);
      }
    }
    return rows;
  }
  const uint8_t* Row(int64_t number) const { return served_->data() + number * served_->row_bytes(); }

  Status CollectKeys(std::vector<int64_t>* keys) const {
    if (!served_->hashed()) {
      for (size_t i = 0; i < keys->size(); ++i) (*keys)[i] = static_cast<int64_t>(i);
      return Status::Ok();
    }
    TFCTR_RETURN_IF_ERROR(served_->hash()->Keys(0, served_->base().rows, keys->data()));
    const OverlayFile* overlay = served_->overlay_file().get();
    if (overlay == nullptr) return Status::Ok();
    const int64_t* const removed = overlay->removed_keys();
    keys->erase(
        std::remove_if(keys->begin(), keys->end(),
                       [=](int64_t key) { return std::binary_search(removed, removed + overlay->removed(), key); }),
        keys->end());
    std::vector<int64_t> numbers(static_cast<size_t>(overlay->rows()));
    served_->index()->Find(overlay->keys(), numbers.size(), numbers.data());
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] == served_->index()->missing) keys->push_back(overlay->keys()[i]);
    }
    return Status::Ok();
  }

  std::shared_ptr<const ServedTable> served_;
  int64_t width_ = 0;
  RowWidener widen_ = nullptr;
};

}  // namespace

void BindServedTable(py::module_& module) {
  py::class_<PyServedTable>(module, "ServedTable",
                            "A static table or a hash file as it is looked up, with its overlay where it has one.")
      .def(py::init<const py::object&, const py::object&, const std::string&, const std::string&>(), py::arg("base"),
           py::arg("overlay") = py::none(), py::arg("memory") = "mapped", py::arg("storage") = "",
           "memory: 'mapped' or 'huge_pages'. storage: of a static table of float32 numbers that is stored as "
           "'float16', "
           "'bfloat16' or 'int8' (a hash file says so itself).")
      .def_property_readonly("name", [](const PyServedTable& self) { return self.table().name(); })
      .def_property_readonly("hashed", [](const PyServedTable& self) { return self.table().hashed(); })
      .def_property_readonly("dim", &PyServedTable::width, "Numbers of a row.")
      .def("__len__", [](const PyServedTable& self) { return self.table().size(); })
      .def("info", &PyServedTable::Info)
      .def("find", &PyServedTable::Find, py::arg("keys"),
           "Row numbers (int64) of keys of any shape: stored rows' places, the default row's for unknown keys.")
      .def("contains", &PyServedTable::Contains, py::arg("keys"), "bool: which keys have a row of their own.")
      .def("rows", &PyServedTable::Rows, py::arg("keys"), "float32 keys.shape + [dim].")
      .def("stored", &PyServedTable::Stored, py::arg("keys"),
           "The same rows as they are stored: uint8 keys.shape + [bytes].")
      .def("keys", &PyServedTable::Keys, "int64: every key that has a row (a static table: its row ids).")
      .def("dense", &PyServedTable::Dense,
           "A static table with the overlay's rows in it as uint8 [rows, bytes], where it lies in memory.");
}

}  // namespace tfctr
