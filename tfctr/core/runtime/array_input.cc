// Arrays (and whatever turns into one) as parts of a request.
#include <algorithm>
#include <cstring>

#include "tfctr/core/runtime/number_cast.h"
#include "tfctr/core/runtime/numbers.h"
#include "tfctr/core/runtime/part_value.h"

namespace tfctr {

namespace py = pybind11;

namespace {

constexpr int kContiguous = 0x0001;  // NPY_ARRAY_C_CONTIGUOUS
constexpr int kAligned = 0x0100;     // NPY_ARRAY_ALIGNED

PyTypeObject* ArrayType() { return py::detail::npy_api::get().PyArray_Type_; }

// The NumPy kinds and sizes that CastArray reads directly.
tensorflow::DataType NumberType(const py::dtype& dtype) {
  const char kind = dtype.kind();
  const auto size = dtype.itemsize();
  if (kind == 'b') return tensorflow::DT_BOOL;
  if (kind == 'f') {
    return size == 4   ? tensorflow::DT_FLOAT
           : size == 8 ? tensorflow::DT_DOUBLE
           : size == 2 ? tensorflow::DT_HALF
                       : tensorflow::DT_INVALID;
  }
  if (kind == 'i') {
    return size == 8   ? tensorflow::DT_INT64
           : size == 4 ? tensorflow::DT_INT32
           : size == 2 ? tensorflow::DT_INT16
                       : tensorflow::DT_INT8;
  }
  if (kind == 'u') {
    return size == 8   ? tensorflow::DT_UINT64
           : size == 4 ? tensorflow::DT_UINT32
           : size == 2 ? tensorflow::DT_UINT16
                       : tensorflow::DT_UINT8;
  }
  return tensorflow::DT_INVALID;
}

void SetShape(const py::array& array, PartValue* out) {
  out->dims.assign(array.shape(), array.shape() + array.ndim());
  out->elements = array.size();
}

py::array Contiguous(const py::array& array) {
  if ((array.flags() & kContiguous) != 0 && (array.flags() & kAligned) != 0) return array;
  return array.attr("copy")("C").cast<py::array>();
}

std::string Describe(const py::array& array) {
  const std::vector<int64_t> dims(array.shape(), array.shape() + array.ndim());
  return py::str(static_cast<py::object>(array.dtype())).cast<std::string>() + " " + DescribeDims(dims);
}

// Casts every element; throws when the pair of types is refused or a value does not fit.
void CastArray(const Part& part, const py::array& array, tensorflow::DataType source, PartValue* out) {
  const int64_t count = array.size();
  std::vector<char> bytes(static_cast<size_t>(count) * part.element_bytes);
  const int64_t bad = CastNumbers(source, static_cast<const char*>(array.data()), count, part.dtype, bytes.data());
  if (bad == kCastRefused) throw Mismatch(Describe(array));
  if (bad != kCastFine) {
    const py::object value = array.attr("flat")[py::int_(bad)];
    throw Mismatch(Describe(array) + " with the value " + py::str(value).cast<std::string>() + ", which does not fit");
  }
  out->Own(std::move(bytes));
}

void TakeStringArray(const Part& part, const py::array& array, PartValue* out) {
  const py::dtype dtype = array.dtype();
  const char kind = dtype.kind();
  py::array source = Contiguous(array);
  if (kind == 'O') {
    out->source = PartValue::Source::kObjects;
  } else if (kind == 'S') {
    out->source = PartValue::Source::kFixedBytes;
  } else if (kind == 'U') {
    if (dtype.byteorder() == '>') source = source.attr("astype")(dtype.attr("newbyteorder")("="));
    out->source = PartValue::Source::kFixedUnicode;
  } else if (kind == 'T') {  // NumPy 2's StringDType
    source = source.attr("astype")("O");
    out->source = PartValue::Source::kObjects;
  } else if (array.size() == 0) {  // np.array([]) is float64
    out->source = PartValue::Source::kObjects;
  } else {
    throw Mismatch(Describe(array));
  }
  SetShape(array, out);
  out->item_bytes = static_cast<uint32_t>(dtype.itemsize());
  out->keep = source;
  out->data = static_cast<const char*>(source.data());
  CheckShape(part, out);
}

}  // namespace

bool TakeExactArray(const Part& part, PyObject* value, PartValue* out) {
  if (Py_TYPE(value) != ArrayType()) return false;
  const auto* array = py::detail::array_proxy(value);
  if (array->descr != part.numpy.ptr() || (array->flags & kContiguous) == 0) return false;
  out->source = part.element_bytes == 0 ? PartValue::Source::kObjects : PartValue::Source::kBytes;
  out->data = array->data;
  int64_t elements = 1;
  bool fits = !part.rank_known || static_cast<size_t>(array->nd) == part.dims.size();
  for (int d = 0; d < array->nd; ++d) {
    const int64_t size = array->dimensions[d];
    elements *= size;
    fits = fits &&
           (!part.rank_known || part.dims[static_cast<size_t>(d)] < 0 || part.dims[static_cast<size_t>(d)] == size);
    out->dims.push_back(size);
  }
  out->elements = elements;
  if (!fits) CheckShape(part, out);
  return true;
}

void TakeArray(const Part& part, const py::array& value, PartValue* out) {
  if (Py_TYPE(value.ptr()) != ArrayType() && py::hasattr(value, "mask")) throw Mismatch("a masked array");
  if (part.element_bytes == 0) return TakeStringArray(part, value, out);
  const py::dtype dtype = value.dtype();
  if (dtype.kind() == 'O') return TakeLists(part, value.attr("tolist")(), out);
  py::array array = Contiguous(value);
  if (dtype.byteorder() == '>') array = array.attr("astype")(dtype.attr("newbyteorder")("="));
  SetShape(array, out);
  if (array.dtype().equal(part.numpy)) {
    out->source = PartValue::Source::kBytes;
    out->keep = array;
    out->data = static_cast<const char*>(array.data());
  } else {
    tensorflow::DataType source = NumberType(array.dtype());
    if (source == tensorflow::DT_INVALID && py::str(static_cast<py::object>(dtype)).cast<std::string>() == "bfloat16") {
      array = array.attr("astype")("float32");
      source = tensorflow::DT_FLOAT;
    }
    if (source == tensorflow::DT_INVALID) throw Mismatch(Describe(array));
    CastArray(part, array, source, out);
  }
  CheckShape(part, out);
}

void TakePart(const Part& part, py::handle value, PartValue* out) {
  if (TakeExactArray(part, value.ptr(), out)) return;
  if (py::isinstance<py::array>(value)) return TakeArray(part, py::reinterpret_borrow<py::array>(value), out);
  if (IsNesting(value) || PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr()) || PyUnicode_Check(value.ptr()) ||
      PyBytes_Check(value.ptr())) {
    return TakeLists(part, value, out);
  }
  if (value.is_none() || IsRagged(value) || IsSparse(value) || PyDict_Check(value.ptr()) ||
      PyAnySet_Check(value.ptr())) {
    throw Mismatch(DescribeValue(value));
  }
  py::object array;
  try {
    if (py::hasattr(value, "numpy")) {  // an eager tensor
      array = value.attr("numpy")();
    } else if (py::hasattr(value, "__array__") || PyObject_CheckBuffer(value.ptr())) {
      array = py::module_::import("numpy").attr("asarray")(value);
    }
  } catch (py::error_already_set& error) {
    const std::string why = error.what();  // with Python's traceback on further lines
    throw Mismatch(DescribeValue(value) + " that has no array form (" + why.substr(0, why.find('\n')) + ")");
  }
  if (!array || array.is_none()) throw Mismatch(DescribeValue(value));
  if (!py::isinstance<py::array>(array)) {  // .numpy() of a scalar string is bytes
    if (IsNesting(array) || py::isinstance<py::bytes>(array) || py::isinstance<py::str>(array)) {
      return TakeLists(part, array, out);
    }
    array = py::module_::import("numpy").attr("asarray")(array);
  }
  TakeArray(part, py::reinterpret_borrow<py::array>(array), out);
  if (!out->keep) out->keep = array;
}

void TakeIntegers(const Part& part, const std::vector<int64_t>& numbers, absl::InlinedVector<int64_t, 4> dims,
                  PartValue* out) {
  std::vector<char> bytes(numbers.size() * part.element_bytes);
  const bool fits = WithNumberType(
      part.dtype,
      [&](auto type) {
        using D = decltype(type);
        if constexpr (!kIsInteger<D>) {
          return false;
        } else {
          D* to = reinterpret_cast<D*>(bytes.data());
          for (size_t i = 0; i < numbers.size(); ++i) {
            if (!CastNumber<int64_t, D>(numbers[i], to + i)) return false;
          }
          return true;
        }
      },
      false);
  if (!fits) throw Mismatch("positions that do not fit " + part.Describe());
  out->elements = static_cast<int64_t>(numbers.size());
  out->dims = std::move(dims);
  out->Own(std::move(bytes));
  CheckShape(part, out);
}

int64_t IntegerAt(const Part& part, const PartValue& value, int64_t i) {
  if (part.dtype == tensorflow::DT_INT32) {
    int32_t number;
    std::memcpy(&number, value.data + i * 4, sizeof(number));
    return number;
  }
  int64_t number = 0;
  if (part.dtype == tensorflow::DT_INT64) std::memcpy(&number, value.data + i * 8, sizeof(number));
  return number;
}

void CheckShape(const Part& part, PartValue* value) {
  if (!part.rank_known) return;
  const size_t rank = part.dims.size();
  if (value->elements == 0 && value->dims.size() < rank) {
    while (value->dims.size() < rank) value->dims.push_back(std::max<int64_t>(part.dims[value->dims.size()], 0));
  }
  bool fits = value->dims.size() == rank;
  for (size_t d = 0; fits && d < rank; ++d) fits = part.dims[d] < 0 || part.dims[d] == value->dims[d];
  if (fits) return;
  const std::vector<int64_t> dims(value->dims.begin(), value->dims.end());
  throw Mismatch(NumpyTypeName(part.dtype) + " " + DescribeDims(dims));
}

std::string DescribeValue(py::handle value) {
  if (value.is_none()) return "None";
  if (IsSparse(value)) return "a SparseTensor";
  if (IsRagged(value)) return "a RaggedTensor";
  if (py::isinstance<py::array>(value)) return Describe(py::reinterpret_borrow<py::array>(value));
  std::string type = Py_TYPE(value.ptr())->tp_name;
  const auto dot = type.rfind('.');
  if (dot != std::string::npos) type = type.substr(dot + 1);
  if (IsNesting(value)) return "a " + type + " of " + std::to_string(PySequence_Size(value.ptr()));
  return "a value of type " + type;
}

bool IsNesting(py::handle value) {
  if (PyList_Check(value.ptr()) || PyTuple_CheckExact(value.ptr())) return true;
  return PyTuple_Check(value.ptr()) && !IsSparse(value);
}

bool IsRagged(py::handle value) { return py::hasattr(value, "nested_row_splits") && py::hasattr(value, "flat_values"); }

bool IsSparse(py::handle value) {
  return py::hasattr(value, "indices") && py::hasattr(value, "values") && py::hasattr(value, "dense_shape");
}

}  // namespace tfctr
