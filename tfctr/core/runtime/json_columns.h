// Parsed JSON of both protocols as inputs of a request (str -> list or array). Under the GIL; loops in C++.
#ifndef TFCTR_CORE_RUNTIME_JSON_COLUMNS_H_
#define TFCTR_CORE_RUNTIME_JSON_COLUMNS_H_

#include <string_view>

#include "pybind11/pybind11.h"

namespace tfctr {

// TF Serving's "instances": rows that are objects with the same keys become one list per key; rows that are bare values
// become {"": rows}, for the one input of the signature. {"b64": text} anywhere in a value becomes bytes. Throws
// BadRequest that names the row and the key.
pybind11::dict InstancesToColumns(const pybind11::list& instances);

// `value` ("inputs" of TF Serving) with each {"b64": text} in it as bytes; itself when there is none.
pybind11::object WithoutBase64(const pybind11::object& value, const std::string& where);

// KServe's "inputs": objects of name, datatype, shape and either data (flat or nested) or, by the parameter
// binary_data_size, bytes of `tail`, which follows the JSON. Arrays of the datatype; BYTES as objects of bytes or str.
// Throws BadRequest.
pybind11::dict KServeInputs(const pybind11::list& inputs, const pybind11::bytes& tail);

// The hash (value_hash.h) of the first value in a list, array or scalar; None when there is none.
pybind11::object HashFirstValue(pybind11::handle value);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_JSON_COLUMNS_H_
