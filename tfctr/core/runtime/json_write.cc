#include "tfctr/core/runtime/json_write.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "pybind11/numpy.h"
#include "tfctr/core/runtime/numbers.h"
#include "tfctr/core/runtime/part_value.h"
#include "tfctr/core/wire/element_type.h"
#include "tfctr/core/wire/json_out.h"
#include "tfctr/core/wire/text.h"

namespace tfctr {

namespace py = pybind11;

namespace {

// One output, in C order.
class OutputArray {
 public:
  OutputArray(py::handle name, py::handle value)
      : name_(name.cast<std::string>()),
        array_(py::module_::import("numpy").attr("ascontiguousarray")(value)),
        dims_(array_.shape(), array_.shape() + array_.ndim()),
        data_(static_cast<const char*>(array_.data())) {
    // ascontiguousarray makes a scalar one-dimensional.
    if (py::isinstance<py::array>(value)) {
      const py::array given = py::reinterpret_borrow<py::array>(value);
      dims_.assign(given.shape(), given.shape() + given.ndim());
    }
    const std::string dtype = array_.dtype().kind() == 'O' ? "string" : array_.dtype().attr("name").cast<std::string>();
    for (const ElementTypeInfo& info : kElementTypes) {
      if (info.name == dtype) type_ = &info;
    }
    if (type_ == nullptr)
      throw BadRequest("output '" + name_ + "': values of type " + dtype + " can't be written as JSON");
    as_bytes_ = name_.size() >= 6 && name_.compare(name_.size() - 6, 6, "_bytes") == 0;
  }

  const std::string& name() const { return name_; }
  const ElementTypeInfo& type() const { return *type_; }
  const std::vector<int64_t>& dims() const { return dims_; }
  int64_t elements() const { return array_.size(); }
  const char* data() const { return data_; }

  // Elements first...first+product of dims_[d...] as nested lists.
  void PutNested(size_t d, int64_t first, std::string* out) const {
    if (d == dims_.size()) return PutValues(first, 1, out);
    int64_t inner = 1;
    for (size_t k = d + 1; k < dims_.size(); ++k) inner *= dims_[k];
    *out += '[';
    if (d + 1 == dims_.size()) {
      PutValues(first, dims_[d], out);
    } else {
      for (int64_t i = 0; i < dims_[d]; ++i) {
        if (i > 0) *out += ", ";
        PutNested(d + 1, first + i * inner, out);
      }
    }
    *out += ']';
  }

  // `count` values with commas between them.
  void PutValues(int64_t first, int64_t count, std::string* out) const {
    if (type_->bytes == 0) {
      for (int64_t i = 0; i < count; ++i) {
        if (i > 0) *out += ", ";
        PutText(first + i, out);
      }
      return;
    }
    WithNumberType(
        static_cast<tensorflow::DataType>(type_->type),
        [&](auto number) {
          using T = decltype(number);
          for (int64_t i = 0; i < count; ++i) {
            if (i > 0) *out += ", ";
            std::memcpy(static_cast<void*>(&number), data_ + static_cast<size_t>(first + i) * sizeof(T), sizeof(T));
            PutNumber<T>(number, out);
          }
          return true;
        },
        false);
  }

  // Text `i` as bytes; the object holds them.
  std::string_view TextAt(int64_t i) const {
    PyObject* object = reinterpret_cast<PyObject* const*>(data_)[i];
    if (object != nullptr && PyBytes_Check(object)) {
      return {PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object))};
    }
    Py_ssize_t size = 0;
    const char* text = object != nullptr && PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
    if (text == nullptr) {
      PyErr_Clear();
      throw BadRequest("output '" + name_ + "': a value that is no text");
    }
    return {text, static_cast<size_t>(size)};
  }

 private:
  template <typename T>
  static void PutNumber(T number, std::string* out) {
    if constexpr (std::is_same_v<T, bool>) {
      *out += number ? "true" : "false";
    } else if constexpr (std::is_same_v<T, double>) {
      PutJsonDouble(number, out);
    } else if constexpr (kIsFloat<T>) {
      PutJsonFloat(static_cast<float>(number), out);
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      PutJsonUnsigned(number, out);
    } else {
      PutJsonInteger(static_cast<int64_t>(number), out);
    }
  }

  void PutText(int64_t i, std::string* out) const {
    const std::string_view text = TextAt(i);
    if (as_bytes_ || !IsUtf8(text)) {
      PutJsonBytes(text, out);
    } else {
      PutJsonText(text, out);
    }
  }

  std::string name_;
  py::array array_;
  std::vector<int64_t> dims_;
  const char* data_;
  const ElementTypeInfo* type_ = nullptr;
  bool as_bytes_ = false;
};

std::vector<OutputArray> Arrays(const py::dict& outputs) {
  std::vector<OutputArray> arrays;
  arrays.reserve(outputs.size());
  for (const auto& [name, value] : outputs) arrays.emplace_back(name, value);
  return arrays;
}

size_t Guess(const std::vector<OutputArray>& arrays) {
  constexpr size_t kBytesOfValue = 14;
  size_t bytes = 64;
  for (const OutputArray& array : arrays)
    bytes += static_cast<size_t>(array.elements()) * kBytesOfValue + array.name().size();
  return bytes;
}

void PutRows(const std::vector<OutputArray>& arrays, std::string* out) {
  for (const OutputArray& array : arrays) {
    if (array.dims().empty() || array.dims()[0] != arrays[0].dims()[0]) {
      throw BadRequest("output '" + array.name() + "' has " +
                       (array.dims().empty() ? "no rows" : std::to_string(array.dims()[0]) + " rows") +
                       (array.dims().empty() || arrays[0].dims().empty()
                            ? ""
                            : " and '" + arrays[0].name() + "' has " + std::to_string(arrays[0].dims()[0])) +
                       ", so the answer can't be given row by row; ask with \"inputs\" instead of \"instances\"");
    }
  }
  std::vector<std::string> heads;
  std::vector<int64_t> row_elements;
  for (const OutputArray& array : arrays) {
    heads.emplace_back();
    PutJsonText(array.name(), &heads.back());
    heads.back() += ": ";
    row_elements.push_back(1);
    for (size_t d = 1; d < array.dims().size(); ++d) row_elements.back() *= array.dims()[d];
  }
  const int64_t rows = arrays.empty() ? 0 : arrays[0].dims()[0];
  *out += '[';
  for (int64_t r = 0; r < rows; ++r) {
    if (r > 0) *out += ", ";
    if (arrays.size() > 1) *out += '{';
    for (size_t k = 0; k < arrays.size(); ++k) {
      if (k > 0) *out += ", ";
      if (arrays.size() > 1) *out += heads[k];
      arrays[k].PutNested(1, r * row_elements[k], out);
    }
    if (arrays.size() > 1) *out += '}';
  }
  *out += ']';
}

}  // namespace

std::string WriteJson(const py::dict& outputs, bool rows) {
  const std::vector<OutputArray> arrays = Arrays(outputs);
  std::string out;
  out.reserve(Guess(arrays));
  if (rows) {
    PutRows(arrays, &out);
    return out;
  }
  if (arrays.size() == 1) {
    arrays[0].PutNested(0, 0, &out);
    return out;
  }
  out += '{';
  for (size_t k = 0; k < arrays.size(); ++k) {
    if (k > 0) out += ", ";
    PutJsonText(arrays[k].name(), &out);
    out += ": ";
    arrays[k].PutNested(0, 0, &out);
  }
  out += '}';
  return out;
}

std::pair<std::string, std::string> WriteKServeJson(const py::dict& outputs, const std::vector<std::string>& binary,
                                                    bool all_binary) {
  const std::vector<OutputArray> arrays = Arrays(outputs);
  std::string out, tail;
  out.reserve(Guess(arrays));
  out += '[';
  for (size_t k = 0; k < arrays.size(); ++k) {
    const OutputArray& array = arrays[k];
    if (k > 0) out += ", ";
    out += "{\"name\": ";
    PutJsonText(array.name(), &out);
    out += ", \"datatype\": \"" + std::string(array.type().kserve) + "\", \"shape\": [";
    for (size_t d = 0; d < array.dims().size(); ++d) out += (d > 0 ? ", " : "") + std::to_string(array.dims()[d]);
    out += "], ";
    const bool strings = array.type().bytes == 0;
    if (!all_binary && std::find(binary.begin(), binary.end(), array.name()) == binary.end()) {
      for (int64_t i = 0; strings && i < array.elements(); ++i) {
        if (IsUtf8(array.TextAt(i))) continue;
        throw BadRequest("output '" + array.name() + "' has text that is no UTF-8; ask for it as binary data");
      }
      out += "\"data\": [";
      if (strings) {
        for (int64_t i = 0; i < array.elements(); ++i) {
          if (i > 0) out += ", ";
          PutJsonText(array.TextAt(i), &out);
        }
      } else {
        array.PutValues(0, array.elements(), &out);
      }
      out += "]}";
      continue;
    }
    const size_t before = tail.size();
    if (strings) {
      for (int64_t i = 0; i < array.elements(); ++i) {
        const std::string_view text = array.TextAt(i);
        const auto size = static_cast<uint32_t>(text.size());
        tail.append(reinterpret_cast<const char*>(&size), sizeof(size));
        tail += text;
      }
    } else {
      tail.append(array.data(), static_cast<size_t>(array.elements()) * array.type().bytes);
    }
    out += "\"parameters\": {\"binary_data_size\": " + std::to_string(tail.size() - before) + "}}";
  }
  out += ']';
  return {std::move(out), std::move(tail)};
}

}  // namespace tfctr
