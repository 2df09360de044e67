#include "tfctr/core/runtime/packer.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>

#include "tensorflow/core/platform/tstring.h"
#include "tfctr/core/lookup/packed_layout.h"
#include "tfctr/core/runtime/request_reader.h"
#include "tfctr/core/runtime/user_rows.h"

namespace tfctr {

namespace py = pybind11;

namespace {

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

// Python objects lie anywhere in the heap: nearly all of the time would go into waiting for one after the other.
constexpr int64_t kObjectsAhead = 16;

void PrefetchObject(const PyObject* object) {
  constexpr int64_t kHeader = 48;  // before the text of a str; that of bytes starts a little earlier
  const char* at = reinterpret_cast<const char*>(object);
  __builtin_prefetch(at);
  __builtin_prefetch(at + kHeader);
}

// The objects that `value` starts with.
void PrefetchFirstObjects(const PartValue& value) {
  if (value.source != PartValue::Source::kObjects || value.taken.rows != nullptr) return;
  PyObject* const* objects = reinterpret_cast<PyObject* const*>(value.data);
  for (int64_t i = 0; i < std::min(value.elements, kObjectsAhead); ++i) PrefetchObject(objects[i]);
}

// Most strings of a feature are short: a few loads and stores instead of a call.
void Assign(const char* text, size_t size, tensorflow::tstring* out) {
  constexpr size_t kWord = 8;
  if (size < kWord || size > 2 * kWord) {
    out->assign(text, size);
    return;
  }
  out->resize_uninitialized(size);
  char* to = out->data();
  uint64_t first, last;
  std::memcpy(&first, text, kWord);
  std::memcpy(&last, text + size - kWord, kWord);
  std::memcpy(to, &first, kWord);
  std::memcpy(to + size - kWord, &last, kWord);
}

void WriteObjects(const PartValue& value, tensorflow::tstring* out) {
  PyObject* const* objects = reinterpret_cast<PyObject* const*>(value.data);
  for (int64_t i = 0; i < value.elements; ++i) {
    if (i + kObjectsAhead < value.elements) PrefetchObject(objects[i + kObjectsAhead]);
    PyObject* object = objects[i];
    if (object != nullptr && (PyBytes_CheckExact(object) || PyBytes_Check(object))) {
      Assign(PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object)), out + i);
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
    Assign(text, static_cast<size_t>(size), out + i);
  }
}

void WriteStrings(const PartValue& value, tensorflow::tstring* out) {
  if (value.source == PartValue::Source::kObjects) return WriteObjects(value, out);
  if (value.source == PartValue::Source::kViews) {
    const auto* views = reinterpret_cast<const std::string_view*>(value.data);
    for (int64_t i = 0; i < value.elements; ++i) Assign(views[i].data(), views[i].size(), out + i);
    return;
  }
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

// Fills `bytes` bytes with copies of the first `row_bytes`, which are there already.
void FillFromFirst(char* to, size_t row_bytes, size_t bytes) {
  for (size_t done = row_bytes; done < bytes;) {
    const size_t more = std::min(done, bytes - done);
    std::memcpy(to + done, to, more);
    done += more;
  }
}

template <size_t kBytes>
void CopyFixedRows(const char* from, const TakenRows& taken, char* to) {
  for (int64_t i = 0; i < taken.count; ++i, to += kBytes) {
    std::memcpy(to, from + static_cast<size_t>(taken.rows[i]) * kBytes, kBytes);
  }
}

void CopyRows(const char* from, const TakenRows& taken, size_t row_bytes, char* to) {
  if (taken.count == 0 || row_bytes == 0) return;
  if (taken.elements == taken.row_elements) {  // one row, for all
    std::memcpy(to, from, row_bytes);
    return FillFromFirst(to, row_bytes, row_bytes * static_cast<size_t>(taken.count));
  }
  if (row_bytes == 4) return CopyFixedRows<4>(from, taken, to);
  if (row_bytes == 8) return CopyFixedRows<8>(from, taken, to);
  for (int64_t i = 0; i < taken.count; ++i, to += row_bytes) {
    std::memcpy(to, from + static_cast<size_t>(taken.rows[i]) * row_bytes, row_bytes);
  }
}

// Strings that are written several times are read from Python once.
void WriteTakenStrings(PartValue* value, tensorflow::tstring* out) {
  const TakenRows& taken = value->taken;
  const int64_t elements = std::exchange(value->elements, taken.elements);
  std::vector<tensorflow::tstring> whole(static_cast<size_t>(taken.elements));
  WriteStrings(*value, whole.data());
  value->elements = elements;
  for (int64_t i = 0; i < taken.count; ++i) {
    const tensorflow::tstring* row = whole.data() + taken.rows[i] * taken.row_elements;
    out = std::copy_n(row, taken.row_elements, out);
  }
}

// Writes the parts that `form` takes.
void Write(const SignaturePlan& plan, const Form& form, std::vector<PartValue>* values, PackedRequest* packed) {
  PackedSegments segments;
  size_t shape_numbers = 0;
  for (size_t i = 0; i < form.parts.size(); ++i) {
    const PartValue& value = (*values)[static_cast<size_t>(form.parts[i])];
    shape_numbers += 1 + value.dims.size();
    if (form.element_bytes[i] == 0) {
      segments.AddStrings(static_cast<uint64_t>(value.elements));
    } else {
      segments.AddNumeric(static_cast<uint64_t>(value.elements) * form.element_bytes[i]);
    }
  }
  packed->arena = tensorflow::Tensor(tensorflow::DT_UINT8, {static_cast<int64_t>(segments.arena_bytes())});
  packed->shapes = tensorflow::Tensor(tensorflow::DT_INT64, {static_cast<int64_t>(shape_numbers)});
  packed->strings = tensorflow::Tensor(tensorflow::DT_STRING, {static_cast<int64_t>(segments.strings())});
  char* arena = static_cast<char*>(packed->arena.data());
  int64_t* shapes = static_cast<int64_t*>(packed->shapes.data());
  auto* strings = static_cast<tensorflow::tstring*>(packed->strings.data());
  PackedSegments write;
  for (size_t i = 0; i < form.parts.size(); ++i) {
    const size_t number = static_cast<size_t>(form.parts[i]);
    PartValue& value = (*values)[number];
    *shapes++ = static_cast<int64_t>(value.dims.size());
    for (const int64_t dim : value.dims) *shapes++ = dim;
    if (form.element_bytes[i] == 0) {
      const uint64_t first = write.AddStrings(static_cast<uint64_t>(value.elements));
      if (i + 1 < form.parts.size()) PrefetchFirstObjects((*values)[static_cast<size_t>(form.parts[i + 1])]);
      try {
        if (value.taken.rows != nullptr) {
          WriteTakenStrings(&value, strings + first);
        } else {
          WriteStrings(value, strings + first);
        }
      } catch (const Mismatch& mismatch) {
        FailPart(plan, plan.parts[number], mismatch);
      }
      continue;
    }
    const uint64_t bytes = static_cast<uint64_t>(value.elements) * form.element_bytes[i];
    if (bytes == 0) continue;
    char* to = arena + write.AddNumeric(bytes);
    if (value.taken.rows != nullptr) {
      CopyRows(value.data, value.taken, static_cast<size_t>(value.taken.row_elements) * form.element_bytes[i], to);
    } else {
      std::memcpy(to, value.data, bytes);
    }
    std::memset(to + bytes, 0, PackedRoundUp(bytes) - bytes);
  }
}

}  // namespace

PackedRequest Pack(const SignaturePlan& plan, const py::dict& request, const std::vector<std::string>& users) {
  // A copy of the dict (references only): converting a value may run Python code, and other threads with it.
  const py::dict held = py::reinterpret_steal<py::dict>(PyDict_Copy(request.ptr()));
  RequestReader reader(plan);
  reader.Read(held);
  return PackValues(plan, &reader.values(), std::move(reader.absent()), users);
}

PackedRequest PackValues(const SignaturePlan& plan, std::vector<PartValue>* values, std::vector<int> absent,
                         const std::vector<std::string>& users) {
  UserRows rows(plan, values, users);
  rows.Arrange();
  PackedRequest packed;
  packed.absent = std::move(absent);
  packed.split = rows.split();
  packed.repeated = rows.repeated();
  Write(plan, packed.split ? *plan.split : plan.plain, values, &packed);
  return packed;
}

namespace {

// Calls `f(rows, name, once)` for everything in the request that has rows, or claims to; once: rows of users.
void ForEachRows(const SignaturePlan& plan, const PackedRequest& request,
                 const std::function<void(int64_t, const std::string&, bool)>& f) {
  const Form& form = request.split ? *plan.split : plan.plain;
  std::vector<PackedInput> inputs;
  std::string error;
  if (!ParsePackedLayout(
          form.element_bytes.data(), form.element_bytes.size(), static_cast<const int64_t*>(request.shapes.data()),
          static_cast<size_t>(request.shapes.NumElements()), static_cast<uint64_t>(request.arena.NumElements()),
          static_cast<uint64_t>(request.strings.NumElements()), &inputs, &error)) {
    return;
  }
  const char* arena = static_cast<const char*>(request.arena.data());
  std::vector<int> place(plan.parts.size(), -1);  // of each part in the form
  for (size_t i = 0; i < form.parts.size(); ++i) {
    const int number = form.parts[i];
    const Part& part = plan.parts[static_cast<size_t>(number)];
    place[static_cast<size_t>(number)] = static_cast<int>(i);
    if (std::find(request.absent.begin(), request.absent.end(), number) != request.absent.end()) continue;
    if (part.feature < 0 && part.rank_known && !part.dims.empty() && part.dims[0] < 0) {
      f(inputs[i].dims[0], part.name, request.split && part.once);
    }
  }
  const auto input_of = [&](int part) -> const PackedInput& {
    return inputs[static_cast<size_t>(place[static_cast<size_t>(part)])];
  };
  for (const Feature& feature : plan.features) {
    const bool once = request.split && plan.parts[static_cast<size_t>(feature.values)].once;
    if (feature.kind == Feature::Kind::kRagged) {
      f(input_of(feature.row_splits[0]).elements - 1, feature.name, once);
      continue;
    }
    const PackedInput& shape = input_of(feature.dense_shape);
    int64_t rows = 0;
    if (shape.element_bytes == sizeof(rows) && shape.elements > 0) {
      std::memcpy(&rows, arena + shape.offset, sizeof(rows));
      f(rows, feature.name, once);
    }
  }
}

}  // namespace

std::pair<int64_t, std::string> MostRows(const SignaturePlan& plan, const PackedRequest& request) {
  std::pair<int64_t, std::string> most{0, ""};
  ForEachRows(plan, request, [&](int64_t rows, const std::string& name, bool) {
    if (rows > most.first) most = {rows, name};
  });
  return most;
}

std::string DescribeRows(const SignaturePlan& plan, const PackedRequest& request) {
  std::vector<std::pair<int64_t, std::vector<std::string>>> groups;  // rows -> who has them
  ForEachRows(plan, request, [&](int64_t rows, const std::string& name, bool once) {
    if (once) return;  // has another number of rows by right
    for (auto& group : groups) {
      if (group.first == rows) return group.second.push_back(name);
    }
    groups.push_back({rows, {name}});
  });
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
