#include "tfctr/core/runtime/request_reader.h"

#include "tfctr/core/runtime/packer.h"

namespace tfctr {

namespace py = pybind11;

namespace {

bool IsRow(py::handle value) {
  return IsNesting(value) || (py::isinstance<py::array>(value) && py::reinterpret_borrow<py::array>(value).ndim() > 0);
}

// An object array of lists or arrays, under the name of a part of a feature.
bool IsArrayOfRows(const Entry& entry, py::handle value) {
  if (entry.feature < 0 || !py::isinstance<py::array>(value)) return false;
  const py::array array = py::reinterpret_borrow<py::array>(value);
  if (array.dtype().kind() != 'O' || array.ndim() != 1 || array.size() == 0) return false;
  return IsRow(*static_cast<PyObject* const*>(array.data()));
}

}  // namespace

void RequestReader::Read(const py::dict& request) {
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(request.ptr(), &position, &key, &value)) {
    const Entry& entry = Find(key);
    if (entry.part >= 0 && !values_[static_cast<size_t>(entry.part)].present() && !IsArrayOfRows(entry, value)) {
      const Part& part = plan_.parts[static_cast<size_t>(entry.part)];
      try {
        if (TakeExactArray(part, value, &values_[static_cast<size_t>(entry.part)])) continue;
      } catch (const Mismatch& mismatch) {
        FailPart(plan_, part, mismatch);
      }
    }
    ReadOther(entry, value, request);
  }
  FinishValues(plan_, &values_, &absent_);
}

const Entry& RequestReader::Find(PyObject* key) const {
  PyObject* number = PyUnicode_Check(key) ? PyDict_GetItem(plan_.entry_of_name.ptr(), key) : nullptr;
  if (number != nullptr) return plan_.entries[static_cast<size_t>(PyLong_AsLong(number))];
  if (!PyUnicode_Check(key)) {
    Fail(plan_, "input names are strings, got " + py::repr(py::handle(key)).cast<std::string>());
  }
  FailUnknown(plan_, py::handle(key).cast<std::string>());
}

void RequestReader::ReadOther(const Entry& entry, PyObject* value, const py::dict& request) {
  if (MeansFeature(entry, value, request)) {
    const Feature& feature = plan_.features[static_cast<size_t>(entry.feature)];
    for (const int part : feature.parts) FailIfTwice(plan_, values_, part);
    try {
      TakeFeature(plan_, feature, value, &values_);
    } catch (const Mismatch& mismatch) {
      FailFeature(plan_, feature, mismatch);
    }
    return;
  }
  FailIfTwice(plan_, values_, entry.part);
  const Part& part = plan_.parts[static_cast<size_t>(entry.part)];
  try {
    TakePart(part, value, &values_[static_cast<size_t>(entry.part)]);
  } catch (const Mismatch& mismatch) {
    FailPart(plan_, part, mismatch);
  }
}

bool RequestReader::MeansFeature(const Entry& entry, py::handle value, const py::dict& request) const {
  if (entry.part < 0) return true;
  if (entry.feature < 0) return false;
  if (py::isinstance<py::array>(value)) return IsArrayOfRows(entry, value) && IsAlone(entry, request);
  if (PyList_CheckExact(value.ptr()) || PyTuple_CheckExact(value.ptr())) {
    return (PySequence_Size(value.ptr()) == 0 || IsRow(PySequence_Fast_ITEMS(value.ptr())[0])) &&
           IsAlone(entry, request);
  }
  return IsRagged(value) || IsSparse(value);
}

bool RequestReader::IsAlone(const Entry& entry, const py::dict& request) const {
  for (const int part : plan_.features[static_cast<size_t>(entry.feature)].parts) {
    if (part != entry.part && request.contains(plan_.parts[static_cast<size_t>(part)].name)) return false;
  }
  return true;
}

}  // namespace tfctr
