// Nested Python lists as parts of a request: rectangular ones for dense inputs, rows of different length for ragged and
// sparse features. One walk over the values in C++; a wrong value is named by its position.
#include <cstring>

#include "tfctr/core/runtime/numbers.h"
#include "tfctr/core/runtime/part_value.h"

namespace tfctr {

namespace py = pybind11;

namespace {

bool IsBool(PyObject* value) {
  return PyBool_Check(value) || std::strcmp(Py_TYPE(value)->tp_name, "numpy.bool") == 0 ||
         std::strcmp(Py_TYPE(value)->tp_name, "numpy.bool_") == 0;
}

template <typename D>
bool PutInteger(PyObject* number, D* to) {
  int overflow = 0;
  const long long signed_value = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow == 0) return CastNumber<int64_t, D>(signed_value, to);
  if (overflow < 0) return false;
  const unsigned long long unsigned_value = PyLong_AsUnsignedLongLong(number);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return CastNumber<uint64_t, D>(unsigned_value, to);
}

// Writes one Python number as a D. False when it is no number, of a kind that D refuses, or does not fit.
template <typename D>
bool PutNumber(PyObject* value, char* to) {
  D number{};
  bool fits = false;
  if constexpr (!std::is_same_v<D, bool>) {
    if (PyLong_CheckExact(value)) {  // by far the most frequent
      fits = PutInteger<D>(value, &number);
      std::memcpy(to, &number, sizeof(D));
      return fits;
    }
  }
  const PyNumberMethods* methods = Py_TYPE(value)->tp_as_number;
  if (IsBool(value)) {
    fits = CastNumber<bool, D>(PyObject_IsTrue(value) == 1, &number);
  } else if constexpr (std::is_same_v<D, bool>) {
    fits = false;
  } else if (PyIndex_Check(value)) {  // np.int64 and friends
    const py::object integer = py::reinterpret_steal<py::object>(PyNumber_Index(value));
    if (!integer) {
      PyErr_Clear();
    } else {
      fits = PutInteger<D>(integer.ptr(), &number);
    }
  } else if constexpr (kIsFloat<D>) {
    if (methods != nullptr && methods->nb_float != nullptr && !PyComplex_Check(value)) {
      const double real = PyFloat_AsDouble(value);
      if (PyErr_Occurred()) {
        PyErr_Clear();
      } else {
        fits = CastNumber<double, D>(real, &number);
      }
    }
  }
  std::memcpy(to, &number, sizeof(D));
  return fits;
}

using Put = bool (*)(PyObject*, char*);

Put PutFor(tensorflow::DataType dtype) {
  return WithNumberType(dtype, [](auto type) -> Put { return &PutNumber<decltype(type)>; }, static_cast<Put>(nullptr));
}

// Walks nested lists. The first `levels` nestings below the outermost list may have rows of different length; the rest
// is uniform.
class Walker {
 public:
  Walker(const Part& part, int levels, PartValue* out, std::vector<std::vector<int64_t>>* splits)
      : part_(part), levels_(static_cast<size_t>(levels)), out_(out), splits_(splits), put_(PutFor(part.dtype)) {
    if (part.element_bytes != 0 && put_ == nullptr) {
      throw Mismatch("a list; give an array of " + NumpyTypeName(part.dtype) + " instead");
    }
  }

  Walker(const Walker&) = delete;
  Walker& operator=(const Walker&) = delete;
  ~Walker() {
    for (PyObject* object : objects_) Py_DECREF(object);
  }

  void Run(py::handle value) {
    if (splits_ != nullptr) splits_->assign(levels_, std::vector<int64_t>{0});
    Walk(value, 0);
    if (dims_.size() <= levels_) dims_.resize(levels_ + 1, -1);
    out_->dims.clear();
    // The values' own shape: all of their rows in one dimension, then the uniform dimensions.
    if (levels_ > 0) {
      out_->dims.push_back(rows_);
    } else if (leaf_depth_ != 0) {
      out_->dims.push_back(dims_[0]);
    }
    for (size_t d = levels_ + 1; d < dims_.size(); ++d) out_->dims.push_back(dims_[d]);
    out_->elements = count_;
    if (part_.element_bytes != 0) {
      out_->Own(std::move(bytes_));
    } else {
      out_->source = PartValue::Source::kObjects;
      out_->objects.swap(objects_);
      out_->data = reinterpret_cast<const char*>(out_->objects.data());
    }
  }

 private:
  std::string Position(size_t depth) const {
    if (depth == 0) return "";
    std::string text = " at ";
    for (size_t d = 0; d < depth; ++d) text += "[" + std::to_string(path_[d]) + "]";
    return text;
  }

  void Walk(py::handle value, size_t depth) {
    PyObject* const object = value.ptr();
    if (PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyUnicode_CheckExact(object) ||
        PyBytes_CheckExact(object)) {
      return Leaf(value, depth);
    }
    if (PyList_CheckExact(object)) return Nest(value, depth);
    if (py::isinstance<py::array>(value)) {
      const py::array array = py::reinterpret_borrow<py::array>(value);
      if (array.ndim() > 0) {
        if (part_.element_bytes != 0 && !AllowedArray(array)) throw Mismatch(DescribeValue(value) + Position(depth));
        return Nest(array.attr("tolist")(), depth);  // NumPy's own loop in C
      }
    }
    if (IsNesting(value)) return Nest(value, depth);
    Leaf(value, depth);
  }

  // tolist() turns every float type into float and every integer into int, which Leaf then checks one by one.
  static bool AllowedArray(const py::array& array) {
    const char kind = array.dtype().kind();
    return kind == 'b' || kind == 'i' || kind == 'u' || kind == 'f' || kind == 'O' || array.size() == 0;
  }

  void Nest(py::handle value, size_t depth) {
    if (depth >= kMaxListDepth) throw Mismatch("lists nested deeper than " + std::to_string(kMaxListDepth));
    if (leaf_depth_ >= 0 && static_cast<size_t>(leaf_depth_) <= depth) {
      throw Mismatch("a list" + Position(depth) + " where other places have a value");
    }
    PyObject* sequence = value.ptr();
    const bool is_list = PyList_Check(sequence);
    const Py_ssize_t size = is_list ? PyList_GET_SIZE(sequence) : PyTuple_GET_SIZE(sequence);
    if (depth == 0 || depth > levels_) Uniform(size, depth);
    if (path_.size() <= depth) path_.resize(depth + 1, 0);
    for (Py_ssize_t i = 0; i < size; ++i) {
      path_[depth] = i;
      PyObject* item = is_list ? PyList_GET_ITEM(sequence, i) : PyTuple_GET_ITEM(sequence, i);
      if (depth == levels_) ++rows_;
      Walk(item, depth + 1);
      if (is_list && PyList_GET_SIZE(sequence) != size) throw Mismatch("a list that changes while it is read");
    }
    if (depth > 0 && depth <= levels_) {
      std::vector<int64_t>& split = (*splits_)[depth - 1];
      split.push_back(depth == levels_ ? rows_ : static_cast<int64_t>((*splits_)[depth].size()) - 1);
    }
  }

  void Uniform(Py_ssize_t size, size_t depth) {
    if (dims_.size() <= depth) dims_.resize(depth + 1, -1);
    if (dims_[depth] < 0) {
      dims_[depth] = size;
    } else if (dims_[depth] != size) {
      throw Mismatch("a list of " + std::to_string(size) + Position(depth) + " where the one before has " +
                     std::to_string(dims_[depth]) + " (rows of different length)");
    }
  }

  void Leaf(py::handle value, size_t depth) {
    if (value.is_none()) throw Mismatch("None" + Position(depth));
    if (depth <= levels_ && levels_ > 0)
      throw Mismatch(DescribeValue(value) + Position(depth) + " where a list of values belongs");
    if (leaf_depth_ < 0 && dims_.size() > depth)
      throw Mismatch(DescribeValue(value) + Position(depth) + " where other places have a list");
    if (leaf_depth_ < 0) leaf_depth_ = static_cast<int64_t>(depth);
    if (static_cast<int64_t>(depth) != leaf_depth_) {
      throw Mismatch(DescribeValue(value) + Position(depth) + " where other places have a list");
    }
    ++count_;
    if (part_.element_bytes == 0) {
      if (!PyUnicode_Check(value.ptr()) && !PyBytes_Check(value.ptr()))
        throw Mismatch(DescribeValue(value) + Position(depth));
      objects_.push_back(value.inc_ref().ptr());
      return;
    }
    const size_t at = bytes_.size();
    bytes_.resize(at + part_.element_bytes);
    if (!put_(value.ptr(), bytes_.data() + at)) Refuse(value, depth);
  }

  [[noreturn]] void Refuse(py::handle value, size_t depth) const {
    const std::string type = Py_TYPE(value.ptr())->tp_name;
    std::string text = py::repr(value).cast<std::string>();
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    const bool number = PyIndex_Check(value.ptr()) != 0 && !IsBool(value.ptr()) && part_.dtype != tensorflow::DT_BOOL;
    throw Mismatch((number ? "the value " + text + ", which does not fit" : "the " + type + " " + text) +
                   Position(depth));
  }

  const Part& part_;
  const size_t levels_;
  PartValue* const out_;
  std::vector<std::vector<int64_t>>* const splits_;
  const Put put_;
  std::vector<int64_t> path_;
  std::vector<int64_t> dims_;  // -1: not seen yet; index = depth of the list
  int64_t leaf_depth_ = -1;
  int64_t count_ = 0;  // values
  int64_t rows_ = 0;   // entries of the innermost ragged level
  std::vector<char> bytes_;
  std::vector<PyObject*> objects_;  // owned references
};

}  // namespace

void TakeLists(const Part& part, py::handle value, PartValue* out) {
  Walker(part, 0, out, nullptr).Run(value);
  CheckShape(part, out);
}

void TakeRaggedLists(const Part& values, py::handle value, int levels, PartValue* out,
                     std::vector<std::vector<int64_t>>* splits) {
  Walker(values, levels, out, splits).Run(value);
  CheckShape(values, out);
}

}  // namespace tfctr
