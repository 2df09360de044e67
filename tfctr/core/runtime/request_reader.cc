#include "tfctr/core/runtime/request_reader.h"

#include "tfctr/core/runtime/packer.h"

namespace tfctr {

namespace py = pybind11;

namespace {

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

std::string Quoted(const std::string& name) { return "'" + name + "'"; }

void Fail(const SignaturePlan& plan, const std::string& what) { throw BadRequest(plan.context + ": " + what); }

void FailPart(const SignaturePlan& plan, const Part& part, const Mismatch& mismatch) {
  std::string of;
  if (part.feature >= 0) {
    const Feature& feature = plan.features[static_cast<size_t>(part.feature)];
    if (feature.name != part.name) of = " of feature " + Quoted(feature.name);
  }
  Fail(plan, "input " + Quoted(part.name) + of + ": got " + mismatch.got() + ", expected " + part.Describe());
}

void FailFeature(const SignaturePlan& plan, const Feature& feature, const Mismatch& mismatch) {
  Fail(plan,
       "feature " + Quoted(feature.name) + ": got " + mismatch.got() + ", expected " + feature.Describe(plan.parts));
}

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
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].present()) continue;
    if (!plan_.parts[i].optional) FailMissing();
    if (static_cast<int>(i) != plan_.row_to_user) absent_.push_back(static_cast<int>(i));
    values_[i].dims.push_back(0);
  }
  for (const Feature& feature : plan_.features) {
    try {
      CheckFeature(plan_, feature, values_);
    } catch (const Mismatch& mismatch) {
      FailFeature(plan_, feature, mismatch);
    }
  }
}

const Entry& RequestReader::Find(PyObject* key) const {
  PyObject* number = PyUnicode_Check(key) ? PyDict_GetItem(plan_.entry_of_name.ptr(), key) : nullptr;
  if (number != nullptr) return plan_.entries[static_cast<size_t>(PyLong_AsLong(number))];
  if (!PyUnicode_Check(key)) {
    Fail(plan_, "input names are strings, got " + py::repr(py::handle(key)).cast<std::string>());
  }
  const std::string name = py::handle(key).cast<std::string>();
  if (name == "row_to_user" && plan_.row_to_user < 0) {
    Fail(plan_, "got 'row_to_user', but no user features are declared for this model, so no rows belong to users");
  }
  Fail(plan_, "there is no input " + Quoted(name) + Suggestion(plan_, name));
}

void RequestReader::ReadOther(const Entry& entry, PyObject* value, const py::dict& request) {
  if (MeansFeature(entry, value, request)) {
    const Feature& feature = plan_.features[static_cast<size_t>(entry.feature)];
    for (const int part : feature.parts) FailIfTwice(part);
    try {
      TakeFeature(plan_, feature, value, &values_);
    } catch (const Mismatch& mismatch) {
      FailFeature(plan_, feature, mismatch);
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

void RequestReader::FailIfTwice(int part) const {
  if (!values_[static_cast<size_t>(part)].present()) return;
  const Part& known = plan_.parts[static_cast<size_t>(part)];
  Fail(plan_, "input " + Quoted(known.name) + " is given twice: by itself and as a part of feature " +
                  Quoted(plan_.features[static_cast<size_t>(known.feature)].name));
}

void RequestReader::FailMissing() const {
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

}  // namespace tfctr
