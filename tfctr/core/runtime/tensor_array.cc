#include "tfctr/core/runtime/tensor_array.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/platform/tstring.h"

namespace tfctr {

namespace py = pybind11;

namespace {

std::vector<py::ssize_t> Shape(const tensorflow::Tensor& tensor) {
  std::vector<py::ssize_t> shape(static_cast<size_t>(tensor.dims()));
  for (int d = 0; d < tensor.dims(); ++d) shape[static_cast<size_t>(d)] = tensor.dim_size(d);
  return shape;
}

py::object StringArray(const tensorflow::Tensor& tensor, const py::dtype& dtype) {
  py::array array(dtype, Shape(tensor));
  PyObject** out = static_cast<PyObject**>(array.mutable_data());
  const auto* strings = static_cast<const tensorflow::tstring*>(tensor.data());
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    PyObject* bytes = PyBytes_FromStringAndSize(strings[i].data(), static_cast<Py_ssize_t>(strings[i].size()));
    if (bytes == nullptr) throw py::error_already_set();
    PyObject* before = out[i];
    out[i] = bytes;
    Py_XDECREF(before);
  }
  return std::move(array);
}

}  // namespace

py::object TensorToArray(tensorflow::Tensor&& tensor, const py::object& numpy_dtype) {
  const py::dtype dtype = py::reinterpret_borrow<py::dtype>(numpy_dtype);
  if (tensor.dtype() == tensorflow::DT_STRING) return StringArray(tensor, dtype);
  if (tensor.NumElements() == 0) return py::array(dtype, Shape(tensor));
  if (!tensor.RefCountIsOne()) return py::array(dtype, Shape(tensor), tensor.data());  // without a base: copies
  auto owner = std::make_unique<tensorflow::Tensor>(std::move(tensor));
  void* data = owner->data();
  const std::vector<py::ssize_t> shape = Shape(*owner);
  const py::capsule capsule(owner.get(), [](void* pointer) { delete static_cast<tensorflow::Tensor*>(pointer); });
  owner.release();
  return py::array(dtype, shape, data, capsule);
}

}  // namespace tfctr
