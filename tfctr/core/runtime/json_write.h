// Outputs (str -> array) as JSON of both protocols. Under the GIL; loops in C++.
#ifndef TFCTR_CORE_RUNTIME_JSON_WRITE_H_
#define TFCTR_CORE_RUNTIME_JSON_WRITE_H_

#include <string>
#include <utility>
#include <vector>

#include "pybind11/pybind11.h"

namespace tfctr {

// TF Serving's "predictions" (rows: a list with a bare value per row for one output, an object for several) or
// "outputs" (columns: the value itself for one output, an object for several). Strings as text, or as {"b64": ...}
// where they are no UTF-8 or the output's name ends with _bytes. Throws BadRequest when rows are asked for and the
// outputs have different numbers of them.
std::string WriteJson(const pybind11::dict& outputs, bool rows);

// KServe's "outputs" list, and the bytes that follow the JSON: the outputs named in `binary` (all with `all_binary`)
// are written as bytes with the parameter binary_data_size, the others as flat data. Throws BadRequest.
std::pair<std::string, std::string> WriteKServeJson(const pybind11::dict& outputs,
                                                    const std::vector<std::string>& binary, bool all_binary);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_JSON_WRITE_H_
