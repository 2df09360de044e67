// TensorFlow tensors as NumPy arrays.
#ifndef TFCTR_CORE_RUNTIME_TENSOR_ARRAY_H_
#define TFCTR_CORE_RUNTIME_TENSOR_ARRAY_H_

#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"
#include "tensorflow/core/framework/tensor.h"

namespace tfctr {

// `tensor` as an array of `dtype` (object arrays of bytes for strings). The array takes over the tensor's memory when
// nobody else holds it; otherwise (a constant of the graph, a table, an input that is also an output) it is a copy, so
// that it may always be written to. Needs the GIL.
pybind11::object TensorToArray(tensorflow::Tensor&& tensor, const pybind11::object& dtype);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_TENSOR_ARRAY_H_
