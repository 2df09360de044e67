#include "tfctr/core/runtime/packer.h"

#include <algorithm>
#include <cstring>

#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/lookup/packed_layout.h"

namespace tfctr {

namespace py = pybind11;

namespace {

std::string Quoted(const std::string& name) { return "'" + name + "'"; }

// "; did you mean 'age'?" by difflib, or a list of what there is.
std::string Suggestion(const SignaturePlan& plan, const std::string& name) {
  py::list names;
  for (const Entry& entry : plan.entries) names.append(entry.name);
  const py::list close = py::module_::import("difflib").attr("get_close_matches")(name, names, 1, 0.6);
  if (!close.empty()) return "; did you mean " + Quoted(close[0].cast<std::string>()) + "?";
  std::string text = "; the signature takes ";
  constexpr size_t kShown = 12;
  for (size_t i = 0; i < plan.entries.size() && i < kShown; ++i)
    text += (i > 0 ? ", " : "") + Quoted(plan.entries[i].name);
  if (plan.entries.size() > kShown) text += " and " + std::to_string(plan.entries.size() - kShown) + " more";
  return text;
}

[[noreturn]] void Fail(const SignaturePlan& plan, const std::string& what) {
  throw BadRequest(plan.context + ": " + what);
}

[[noreturn]] void FailPart(const SignaturePlan& plan, const Part& part, const Mismatch& mismatch) {
  std::string of;
  if (part.feature >= 0) {
    const Feature& feature = plan.features[static_cast<size_t>(part.feature)];
    if (feature.name != part.name) of = " of feature " + Quoted(feature.name);
  }
  Fail(plan, "input " + Quoted(part.name) + of + ": got " + mismatch.got() + ", expected " + part.Describe());
}

class RequestReader {
 public:
  explicit RequestReader(const SignaturePlan& plan) : plan_(plan), values_(plan.parts.size()) {}

  void Read(const py::dict& request) {
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
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].present()) continue;
      if (!plan_.parts[i].optional) FailMissing();
      absent_.push_back(static_cast<int>(i));
      values_[i].dims.push_back(0);
    }
    for (const Feature& feature : plan_.features) {
      try {
        CheckFeature(plan_, feature, values_);
      } catch (const Mismatch& mismatch) {
        FailFeature(feature, mismatch);
      }
    }
  }

  std::vector<PartValue>& values() { return values_; }
  std::vector<int>& absent() { return absent_; }

 private:
  const Entry& Find(PyObject* key) const {
    PyObject* number = PyUnicode_Check(key) ? PyDict_GetItem(plan_.entry_of_name.ptr(), key) : nullptr;
    if (number != nullptr) return plan_.entries[static_cast<size_t>(PyLong_AsLong(number))];
    if (!PyUnicode_Check(key)) {
      Fail(plan_, "input names are strings, got " + py::repr(py::handle(key)).cast<std::string>());
    }
    const std::string name = py::handle(key).cast<std::string>();
    Fail(plan_, "there is no input " + Quoted(name) + Suggestion(plan_, name));
  }

  void ReadOther(const Entry& entry, PyObject* value, const py::dict& request) {
    if (MeansFeature(entry, value, request)) {
      const Feature& feature = plan_.features[static_cast<size_t>(entry.feature)];
      for (const int part : feature.parts) FailIfTwice(part);
      try {
        TakeFeature(plan_, feature, value, &values_);
      } catch (const Mismatch& mismatch) {
        FailFeature(feature, mismatch);
      }
      return;
    }
    FailIfTwice(entry.part);
    const Part& part = plan_.parts[static_cast<size_t>(entry.part)];
    try {
      TakePart(part, value, &values_[static_cast<size_t>(entry.part)]);
    } catch (const Mismatch& mismatch) {
      FailPart(plan_, part, mismatch);
    }
  }

  // A sparse or ragged tensor, or nested lists, under the name of a part mean the whole feature; lists only when no
  // other part of the feature is given, as indices may be written as lists too.
  bool MeansFeature(const Entry& entry, py::handle value, const py::dict& request) const {
    if (entry.part < 0) return true;
    if (entry.feature < 0) return false;
    if (py::isinstance<py::array>(value)) return IsArrayOfRows(entry, value) && IsAlone(entry, request);
    if (PyList_CheckExact(value.ptr()) || PyTuple_CheckExact(value.ptr())) {
      return (PySequence_Size(value.ptr()) == 0 || IsRow(PySequence_Fast_ITEMS(value.ptr())[0])) &&
             IsAlone(entry, request);
    }
    return IsRagged(value) || IsSparse(value);
  }

  // Whether no other part of the entry's feature is given.
  bool IsAlone(const Entry& entry, const py::dict& request) const {
    for (const int part : plan_.features[static_cast<size_t>(entry.feature)].parts) {
      if (part != entry.part && request.contains(plan_.parts[static_cast<size_t>(part)].name)) return false;
    }
    return true;
  }

  static bool IsRow(py::handle value) {
    return IsNesting(value) ||
           (py::isinstance<py::array>(value) && py::reinterpret_borrow<py::array>(value).ndim() > 0);
  }

  // An object array of lists or arrays, under the name of a part of a feature.
  static bool IsArrayOfRows(const Entry& entry, py::handle value) {
    if (entry.feature < 0 || !py::isinstance<py::array>(value)) return false;
    const py::array array = py::reinterpret_borrow<py::array>(value);
    if (array.dtype().kind() != 'O' || array.ndim() != 1 || array.size() == 0) return false;
    return IsRow(*static_cast<PyObject* const*>(array.data()));
  }

  void FailIfTwice(int part) const {
    if (!values_[static_cast<size_t>(part)].present()) return;
    const Part& known = plan_.parts[static_cast<size_t>(part)];
    Fail(plan_, "input " + Quoted(known.name) + " is given twice: by itself and as a part of feature " +
                    Quoted(plan_.features[static_cast<size_t>(known.feature)].name));
  }

  [[noreturn]] void FailFeature(const Feature& feature, const Mismatch& mismatch) const {
    Fail(plan_,
         "feature " + Quoted(feature.name) + ": got " + mismatch.got() + ", expected " + feature.Describe(plan_.parts));
  }

  [[noreturn]] void FailMissing() const {
    std::vector<std::string> missing;
    std::vector<bool> told(plan_.features.size(), false);
    for (size_t i = 0; i < values_.size(); ++i) {
      const Part& part = plan_.parts[i];
      if (values_[i].present() || part.optional) continue;
      if (part.feature < 0) {
        missing.push_back("input " + Quoted(part.name) + " (" + part.Describe() + ")");
        continue;
      }
      const Feature& feature = plan_.features[static_cast<size_t>(part.feature)];
      bool some = false;
      for (const int other : feature.parts) some = some || values_[static_cast<size_t>(other)].present();
      if (some) {
        missing.push_back("input " + Quoted(part.name) + " (" + part.Describe() + ", a part of feature " +
                          Quoted(feature.name) + ")");
      } else if (!told[static_cast<size_t>(part.feature)]) {
        told[static_cast<size_t>(part.feature)] = true;
        missing.push_back("feature " + Quoted(feature.name) + " (" + feature.Describe(plan_.parts) + ")");
      }
    }
    std::string text = missing.size() == 1 ? "missing " : std::to_string(missing.size()) + " inputs are missing: ";
    constexpr size_t kShown = 5;
    for (size_t i = 0; i < missing.size() && i < kShown; ++i) text += (i > 0 ? ", " : "") + missing[i];
    if (missing.size() > kShown) text += " and " + std::to_string(missing.size() - kShown) + " more";
    Fail(plan_, text);
  }

  const SignaturePlan& plan_;
  std::vector<PartValue> values_;
  std::vector<int> absent_;
};

// Encodes one NumPy UCS4 item (padded with NUL) as UTF-8; false for a code point that is none.
bool EncodeUtf8(const char* data, size_t bytes, std::string* out) {
  out->clear();
  size_t count = bytes / 4;
  const auto at = [&](size_t i) {
    uint32_t code;
    std::memcpy(&code, data + i * 4, sizeof(code));
    return code;
  };
  while (count > 0 && at(count - 1) == 0) --count;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t c = at(i);
    if (c < 0x80) {
      out->push_back(static_cast<char>(c));
    } else if (c < 0x800) {
      out->push_back(static_cast<char>(0xC0 | (c >> 6)));
      out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
    } else if (c < 0x10000) {
      if (c >= 0xD800 && c < 0xE000) return false;
      out->push_back(static_cast<char>(0xE0 | (c >> 12)));
      out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
      out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
    } else {
      if (c > 0x10FFFF) return false;
      out->push_back(static_cast<char>(0xF0 | (c >> 18)));
      out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
      out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
      out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
    }
  }
  return true;
}

void WriteObjects(const PartValue& value, tensorflow::tstring* out) {
  PyObject* const* objects = reinterpret_cast<PyObject* const*>(value.data);
  for (int64_t i = 0; i < value.elements; ++i) {
    PyObject* object = objects[i];
    if (object != nullptr && PyBytes_Check(object)) {
      out[i].assign(PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object)));
      continue;
    }
    Py_ssize_t size = 0;
    const char* text = object != nullptr && PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
    if (text == nullptr) {
      if (PyErr_Occurred()) {
        PyErr_Clear();
        throw Mismatch("text that is not valid Unicode at value " + std::to_string(i));
      }
      throw Mismatch((object == nullptr ? std::string("None") : DescribeValue(object)) + " at value " +
                     std::to_string(i));
    }
    out[i].assign(text, static_cast<size_t>(size));
  }
}

void WriteStrings(const PartValue& value, tensorflow::tstring* out) {
  if (value.source == PartValue::Source::kObjects) return WriteObjects(value, out);
  std::string utf8;
  for (int64_t i = 0; i < value.elements; ++i) {
    const char* item = value.data + i * value.item_bytes;
    if (value.source == PartValue::Source::kFixedBytes) {
      size_t size = value.item_bytes;
      while (size > 0 && item[size - 1] == 0) --size;
      out[i].assign(item, size);
    } else {
      if (!EncodeUtf8(item, value.item_bytes, &utf8)) {
        throw Mismatch("text that is not valid Unicode at value " + std::to_string(i));
      }
      out[i].assign(utf8.data(), utf8.size());
    }
  }
}

}  // namespace

PackedRequest Pack(const SignaturePlan& plan, const py::dict& request) {
  // A copy of the dict (references only): converting a value may run Python code, and other threads with it.
  const py::dict held = py::reinterpret_steal<py::dict>(PyDict_Copy(request.ptr()));
  RequestReader reader(plan);
  reader.Read(held);
  std::vector<PartValue>& values = reader.values();
  PackedSegments segments;
  size_t shape_numbers = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    shape_numbers += 1 + values[i].dims.size();
    if (plan.element_bytes[i] == 0) {
      segments.AddStrings(static_cast<uint64_t>(values[i].elements));
    } else {
      segments.AddNumeric(static_cast<uint64_t>(values[i].elements) * plan.element_bytes[i]);
    }
  }
  PackedRequest packed;
  packed.absent = std::move(reader.absent());
  packed.arena = tensorflow::Tensor(tensorflow::DT_UINT8, {static_cast<int64_t>(segments.arena_bytes())});
  packed.shapes = tensorflow::Tensor(tensorflow::DT_INT64, {static_cast<int64_t>(shape_numbers)});
  packed.strings = tensorflow::Tensor(tensorflow::DT_STRING, {static_cast<int64_t>(segments.strings())});
  char* arena = static_cast<char*>(packed.arena.data());
  int64_t* shapes = static_cast<int64_t*>(packed.shapes.data());
  auto* strings = static_cast<tensorflow::tstring*>(packed.strings.data());
  PackedSegments write;
  for (size_t i = 0; i < values.size(); ++i) {
    const PartValue& value = values[i];
    *shapes++ = static_cast<int64_t>(value.dims.size());
    for (const int64_t dim : value.dims) *shapes++ = dim;
    if (plan.element_bytes[i] == 0) {
      const uint64_t first = write.AddStrings(static_cast<uint64_t>(value.elements));
      try {
        WriteStrings(value, strings + first);
      } catch (const Mismatch& mismatch) {
        FailPart(plan, plan.parts[i], mismatch);
      }
      continue;
    }
    const uint64_t bytes = static_cast<uint64_t>(value.elements) * plan.element_bytes[i];
    if (bytes == 0) continue;
    char* to = arena + write.AddNumeric(bytes);
    std::memcpy(to, value.data, bytes);
    std::memset(to + bytes, 0, PackedRoundUp(bytes) - bytes);
  }
  return packed;
}

std::string DescribeRows(const SignaturePlan& plan, const PackedRequest& request) {
  std::vector<PackedInput> inputs;
  std::string error;
  if (!ParsePackedLayout(
          plan.element_bytes.data(), plan.element_bytes.size(), static_cast<const int64_t*>(request.shapes.data()),
          static_cast<size_t>(request.shapes.NumElements()), static_cast<uint64_t>(request.arena.NumElements()),
          static_cast<uint64_t>(request.strings.NumElements()), &inputs, &error)) {
    return "";
  }
  const char* arena = static_cast<const char*>(request.arena.data());
  std::vector<std::pair<int64_t, std::vector<std::string>>> groups;  // rows -> who has them
  const auto add = [&](int64_t rows, const std::string& name) {
    for (auto& group : groups) {
      if (group.first == rows) return group.second.push_back(name);
    }
    groups.push_back({rows, {name}});
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Part& part = plan.parts[i];
    if (std::find(request.absent.begin(), request.absent.end(), static_cast<int>(i)) != request.absent.end()) continue;
    if (part.feature < 0 && part.rank_known && !part.dims.empty() && part.dims[0] < 0)
      add(inputs[i].dims[0], part.name);
  }
  for (const Feature& feature : plan.features) {
    if (feature.kind == Feature::Kind::kRagged) {
      add(inputs[static_cast<size_t>(feature.row_splits[0])].elements - 1, feature.name);
      continue;
    }
    const PackedInput& shape = inputs[static_cast<size_t>(feature.dense_shape)];
    int64_t rows = 0;
    if (shape.element_bytes == sizeof(rows) && shape.elements > 0) {
      std::memcpy(&rows, arena + shape.offset, sizeof(rows));
      add(rows, feature.name);
    }
  }
  if (groups.size() < 2) return "";
  std::string text = "the inputs have different numbers of rows: ";
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& names = groups[g].second;
    text += (g > 0 ? "; " : "") + std::to_string(groups[g].first) + " in " + Quoted(names[0]);
    for (size_t i = 1; i < names.size() && i < 3; ++i) text += ", " + Quoted(names[i]);
    if (names.size() > 3) text += " and " + std::to_string(names.size() - 3) + " more";
  }
  return text;
}

}  // namespace tfctr
