#include "tfctr/core/runtime/json_columns.h"

#include <cstring>
#include <string>

#include "pybind11/numpy.h"
#include "tfctr/core/runtime/part_value.h"
#include "tfctr/core/runtime/request_checks.h"
#include "tfctr/core/wire/json_out.h"
#include "tfctr/core/wire/text.h"
#include "tfctr/core/wire/value_hash.h"
#include "tfctr/core/wire/wire_tensor.h"

namespace tfctr {

namespace py = pybind11;

namespace {

std::string_view TextOf(py::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) {
    PyErr_Clear();
    throw BadRequest("text that is not valid Unicode");
  }
  return std::string_view(data, static_cast<size_t>(size));
}

std::string KindOf(py::handle value) {
  if (value.is_none()) return "null";
  if (PyBool_Check(value.ptr())) return "a boolean";
  if (PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr())) return "a number";
  if (PyUnicode_Check(value.ptr())) return "a string";
  return PyList_Check(value.ptr()) ? "a list" : PyDict_Check(value.ptr()) ? "an object" : DescribeValue(value);
}

std::string Short(py::handle key) { return PyUnicode_Check(key.ptr()) ? ShownText(TextOf(key)) : DescribeValue(key); }

// The text of {"b64": text}; null for any other object.
PyObject* Base64Of(PyObject* value) {
  if (!PyDict_CheckExact(value) || PyDict_GET_SIZE(value) != 1) return nullptr;
  PyObject* text = PyDict_GetItemString(value, "b64");
  return text != nullptr && PyUnicode_Check(text) ? text : nullptr;
}

// Where a value is, put into words only when something is wrong with it.
struct Place {
  const std::string* name = nullptr;  // the whole place; else row and key of "instances"
  Py_ssize_t row = 0;
  PyObject* key = nullptr;

  std::string Show() const {
    if (name != nullptr) return *name;
    return "instances[" + std::to_string(row) + "]" + (key == nullptr ? "" : "." + std::string(TextOf(key)));
  }
};

// Replaces what has {"b64"} in it. A new reference, or null when `value` may stay as it is.
PyObject* Decoded(PyObject* value, const Place& place, size_t depth) {
  if (PyDict_CheckExact(value)) {
    PyObject* text = Base64Of(value);
    if (text == nullptr) {
      throw BadRequest(place.Show() + ": found an object, expected values, or {\"b64\": \"...\"} for bytes");
    }
    std::string bytes;
    const std::string_view encoded = TextOf(text);
    if (!DecodeBase64(encoded, &bytes)) {
      throw BadRequest(place.Show() + ": b64 " + ShownText(encoded.substr(0, 40)) + " is no valid base64");
    }
    return py::bytes(bytes).release().ptr();
  }
  if (!PyList_CheckExact(value)) return nullptr;
  if (depth >= kMaxListDepth)
    throw BadRequest(place.Show() + ": lists nested deeper than " + std::to_string(kMaxListDepth));
  py::object copy;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i) {
    PyObject* item = PyList_GET_ITEM(value, i);
    if (!PyDict_CheckExact(item) && !PyList_CheckExact(item)) continue;
    PyObject* made = Decoded(item, place, depth + 1);
    if (made == nullptr) continue;
    const py::object held = py::reinterpret_steal<py::object>(made);
    if (!copy) copy = py::reinterpret_steal<py::object>(PyList_GetSlice(value, 0, PyList_GET_SIZE(value)));
    if (!copy) throw py::error_already_set();
    PyList_SetItem(copy.ptr(), i, held.inc_ref().ptr());
  }
  return copy ? copy.release().ptr() : nullptr;
}

PyObject* NewDecoded(PyObject* value, const Place& place) {
  PyObject* made = PyDict_CheckExact(value) || PyList_CheckExact(value) ? Decoded(value, place, 0) : nullptr;
  if (made != nullptr) return made;
  Py_INCREF(value);
  return value;
}

bool IsObject(PyObject* row) { return PyDict_CheckExact(row) && Base64Of(row) == nullptr; }

std::string RowName(Py_ssize_t row) { return "instances[" + std::to_string(row) + "]"; }

[[noreturn]] void FailRow(PyObject* first, PyObject* row, Py_ssize_t number) {
  const char* same = "; every row has the same inputs";
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(first)) {
    if (PyDict_Contains(row, key.ptr()) == 0)
      throw BadRequest(RowName(number) + ": " + Short(key) + " is missing" + same);
  }
  for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(row)) {
    if (PyDict_Contains(first, key.ptr()) == 0) {
      throw BadRequest(RowName(number) + ": has " + Short(key) + ", which instances[0] has not" + same);
    }
  }
  throw BadRequest(RowName(number) + ": its inputs are not those of instances[0]");
}

py::dict BareRows(const py::list& rows) {
  py::list column(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    PyObject* row = PyList_GET_ITEM(rows.ptr(), static_cast<Py_ssize_t>(i));
    const auto number = static_cast<Py_ssize_t>(i);
    if (IsObject(row)) throw BadRequest(RowName(number) + ": an object where instances[0] is " + KindOf(rows[0]));
    PyList_SET_ITEM(column.ptr(), number, NewDecoded(row, Place{nullptr, number, nullptr}));
  }
  py::dict columns;
  columns[py::str("")] = column;
  return columns;
}

}  // namespace

py::dict InstancesToColumns(const py::list& instances) {
  py::dict columns;
  const Py_ssize_t rows = PyList_GET_SIZE(instances.ptr());
  if (rows == 0) return columns;
  PyObject* first = PyList_GET_ITEM(instances.ptr(), 0);
  if (!IsObject(first)) return BareRows(instances);
  for (Py_ssize_t r = 0; r < rows; ++r) {
    PyObject* row = PyList_GET_ITEM(instances.ptr(), r);
    if (!PyDict_CheckExact(row)) throw BadRequest(RowName(r) + ": " + KindOf(row) + " where instances[0] is an object");
    if (PyDict_GET_SIZE(row) != PyDict_GET_SIZE(first)) FailRow(first, row, r);
  }
  PyObject* key = nullptr;
  PyObject* unused = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(first, &position, &key, &unused)) {
    py::list column(static_cast<size_t>(rows));
    for (Py_ssize_t r = 0; r < rows; ++r) {
      PyObject* row = PyList_GET_ITEM(instances.ptr(), r);
      PyObject* value = PyDict_GetItem(row, key);
      if (value == nullptr) FailRow(first, row, r);
      PyList_SET_ITEM(column.ptr(), r, NewDecoded(value, Place{nullptr, r, key}));
    }
    columns[py::handle(key)] = column;
  }
  return columns;
}

py::object WithoutBase64(const py::object& value, const std::string& where) {
  return py::reinterpret_steal<py::object>(NewDecoded(value.ptr(), Place{&where}));
}

namespace {

// One member of an input; borrowed.
PyObject* Member(PyObject* input, const char* name) { return PyDict_GetItemString(input, name); }

py::dtype NumpyOf(const ElementTypeInfo& type) {
  if (type.bytes == 0) return py::dtype("O");
  if (type.type == ElementType::kBfloat16) {
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  }
  return py::dtype(std::string(type.name));
}

// Reads one input of a KServe request.
class InputReader {
 public:
  InputReader(PyObject* input, std::string where) : input_(input), where_(std::move(where)) {}

  py::object Read(std::string_view* tail) {
    ReadHead();
    int64_t size = -1;
    PyObject* parameters = Member(input_, "parameters");
    if (parameters != nullptr) size = BinarySize(parameters);
    PyObject* data = Member(input_, "data");
    if (size >= 0) {
      if (data != nullptr) Fail("both data and binary_data_size");
      if (static_cast<uint64_t>(size) > tail->size()) {
        Fail("binary_data_size " + std::to_string(size) + " where " + std::to_string(tail->size()) +
             " bytes are left after the JSON");
      }
      const std::string_view raw = tail->substr(0, static_cast<size_t>(size));
      tail->remove_prefix(static_cast<size_t>(size));
      return FromBytes(raw);
    }
    if (data == nullptr || !PyList_Check(data)) {
      Fail((data == nullptr ? std::string("no data") : KindOf(data) + " as data") + ", expected a list of values");
    }
    return FromList(data);
  }

 private:
  [[noreturn]] void Fail(const std::string& got) const { throw BadRequest(where_ + ": got " + got); }

  void ReadHead() {
    PyObject* datatype = Member(input_, "datatype");
    if (datatype == nullptr || !PyUnicode_Check(datatype)) Fail("no datatype, expected one of the protocol ('FP32')");
    tensor_.type = FindKServeType(TextOf(datatype));
    if (tensor_.type == nullptr) Fail("datatype " + ShownText(TextOf(datatype)) + ", which is unknown");
    PyObject* shape = Member(input_, "shape");
    if (shape == nullptr || !PyList_Check(shape)) Fail("no shape, expected a list of dimensions");
    std::string got;
    for (Py_ssize_t d = 0; d < PyList_GET_SIZE(shape); ++d) {
      PyObject* size = PyList_GET_ITEM(shape, d);
      int overflow = 1;
      const bool whole = PyLong_Check(size) && !PyBool_Check(size);
      const int64_t dim = whole ? PyLong_AsLongLongAndOverflow(size, &overflow) : 0;
      if (overflow != 0) Fail("a shape whose dimension " + std::to_string(d) + " is no size");
      if (!AddDim(dim, &tensor_, &got)) Fail(got);
    }
    constexpr int32_t kNumpyMaxRank = 64;
    if (tensor_.rank > kNumpyMaxRank) Fail("a shape of " + std::to_string(tensor_.rank) + " dimensions");
    if (!CountElements(&tensor_, &got)) Fail(got);
  }

  // -1: the values are not binary.
  int64_t BinarySize(PyObject* parameters) const {
    if (!PyDict_Check(parameters)) Fail(KindOf(parameters) + " as parameters");
    for (const auto& [key, value] : py::reinterpret_borrow<py::dict>(parameters)) {
      if (PyUnicode_Check(key.ptr()) && TextOf(key).substr(0, 13) == "shared_memory") {
        Fail("a region of shared memory, which is not offered here");
      }
    }
    PyObject* size = Member(parameters, "binary_data_size");
    if (size == nullptr) return -1;
    int overflow = 1;
    const int64_t bytes = PyLong_Check(size) && !PyBool_Check(size) ? PyLong_AsLongLongAndOverflow(size, &overflow) : 0;
    if (overflow != 0 || bytes < 0) Fail("a binary_data_size that is no size");
    return bytes;
  }

  std::vector<py::ssize_t> Shape() const { return std::vector<py::ssize_t>(tensor_.dims, tensor_.dims + tensor_.rank); }

  py::object FromBytes(std::string_view raw) {
    tensor_.is_raw = true;
    tensor_.raw = raw;
    tensor_.raw_strings = WireTensor::RawStrings::kLengthBeforeEach;
    BlockMemory memory;
    std::string got;
    int64_t filled = 0;
    if (tensor_.type->bytes != 0) {
      const char* data = nullptr;
      if (!ReadNumbers(tensor_, &filled, &memory, &data, &got)) Fail(got);
      return py::array(NumpyOf(*tensor_.type), Shape(), data);  // without a base: copies
    }
    const std::string_view* views = nullptr;
    if (!ReadStrings(tensor_, &filled, &memory, &views, &got)) Fail(got);
    py::array array(py::dtype("O"), Shape());
    auto** out = static_cast<PyObject**>(array.mutable_data());
    for (int64_t i = 0; i < tensor_.elements; ++i) {
      PyObject* bytes = PyBytes_FromStringAndSize(views[i].data(), static_cast<Py_ssize_t>(views[i].size()));
      if (bytes == nullptr) throw py::error_already_set();
      PyObject* before = std::exchange(out[i], bytes);
      Py_XDECREF(before);
    }
    return std::move(array);
  }

  py::object FromList(PyObject* data) {
    Part part;
    part.dtype = static_cast<tensorflow::DataType>(tensor_.type->type);
    part.element_bytes = tensor_.type->bytes;
    PartValue value;
    try {
      TakeLists(part, data, &value);
    } catch (const Mismatch& mismatch) {
      Fail(mismatch.got() + ", expected " + std::string(tensor_.type->name) + " as its datatype says");
    }
    if (value.elements != tensor_.elements) {
      Fail(std::to_string(value.elements) + " values, expected " + std::to_string(tensor_.elements) +
           " as its shape says");
    }
    if (part.element_bytes != 0) return py::array(NumpyOf(*tensor_.type), Shape(), value.data);
    py::array array(py::dtype("O"), Shape());
    auto** out = static_cast<PyObject**>(array.mutable_data());
    for (size_t i = 0; i < value.objects.size(); ++i) {
      Py_INCREF(value.objects[i]);
      PyObject* before = std::exchange(out[i], value.objects[i]);
      Py_XDECREF(before);
    }
    return std::move(array);
  }

  PyObject* const input_;
  const std::string where_;
  WireTensor tensor_;
};

}  // namespace

py::dict KServeInputs(const py::list& inputs, const py::bytes& tail) {
  py::dict result;
  std::string_view left(PyBytes_AS_STRING(tail.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(tail.ptr())));
  for (size_t i = 0; i < inputs.size(); ++i) {
    PyObject* input = PyList_GET_ITEM(inputs.ptr(), static_cast<Py_ssize_t>(i));
    const std::string place = "inputs[" + std::to_string(i) + "]";
    if (!PyDict_Check(input)) throw BadRequest(place + ": " + KindOf(input) + ", expected an object");
    PyObject* name = Member(input, "name");
    if (name == nullptr || !PyUnicode_Check(name)) throw BadRequest(place + ": no name, expected that of an input");
    const std::string where = "input " + ShownText(TextOf(name));
    if (result.contains(py::handle(name))) throw BadRequest(where + " is given twice");
    result[py::handle(name)] = InputReader(input, where).Read(&left);
  }
  if (!left.empty()) {
    throw BadRequest(std::to_string(left.size()) + " bytes follow the JSON and belong to no input (binary_data_size)");
  }
  return result;
}

py::object HashFirstValue(py::handle value) {
  py::object at = py::reinterpret_borrow<py::object>(value);
  for (size_t depth = 0; depth <= kMaxListDepth; ++depth) {
    if (py::isinstance<py::array>(at)) {
      const py::array array = py::reinterpret_borrow<py::array>(at);
      if (array.size() == 0) return py::none();
      at = array.attr("flat")[py::int_(0)];
      if (py::hasattr(at, "item")) at = array.dtype().kind() == 'V' ? py::object(py::float_(at)) : at.attr("item")();
      continue;
    }
    PyObject* object = at.ptr();
    if (PyBool_Check(object)) return py::int_(HashSigned(object == Py_True ? 1 : 0));
    if (PyLong_Check(object)) {
      int overflow = 0;
      const int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
      if (overflow == 0) return py::int_(HashSigned(number));
      const uint64_t wide = overflow > 0 ? PyLong_AsUnsignedLongLong(object) : 0;
      if (overflow < 0 || PyErr_Occurred()) {
        PyErr_Clear();
        return py::none();
      }
      return py::int_(HashUnsigned(wide));
    }
    if (PyFloat_Check(object)) return py::int_(HashReal(PyFloat_AS_DOUBLE(object)));
    if (PyUnicode_Check(object)) return py::int_(HashText(TextOf(at)));
    if (PyBytes_Check(object)) {
      return py::int_(HashText({PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object))}));
    }
    if (py::hasattr(at, "numpy")) {
      at = at.attr("numpy")();
    } else if (IsRagged(at)) {
      at = at.attr("flat_values");
    } else if (IsSparse(at)) {
      at = at.attr("values");
    } else if (PyList_Check(object) || PyTuple_CheckExact(object)) {
      // The first row with a value in it: ragged rows may be empty.
      py::object next;
      for (Py_ssize_t i = 0; i < PySequence_Size(object) && !next; ++i) {
        PyObject* item = PySequence_Fast_ITEMS(object)[i];
        if (!PyList_Check(item) || PyList_GET_SIZE(item) > 0) next = py::reinterpret_borrow<py::object>(item);
      }
      if (!next) return py::none();
      at = next;
    } else {
      return py::none();
    }
  }
  return py::none();
}

}  // namespace tfctr
