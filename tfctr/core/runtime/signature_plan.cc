#include "tfctr/core/runtime/signature_plan.h"

#include <stdexcept>

#include "pybind11/stl.h"
#include "tfctr/core/kernels/unpack_slices.h"

namespace tfctr {

namespace py = pybind11;

std::string NumpyTypeName(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return "float32";
    case tensorflow::DT_DOUBLE:
      return "float64";
    case tensorflow::DT_HALF:
      return "float16";
    default:
      return tensorflow::DataTypeString(dtype);
  }
}

std::string DescribeDims(const std::vector<int64_t>& dims) {
  std::string text = "[";
  constexpr size_t kShown = 12;
  for (size_t i = 0; i < dims.size() && i < kShown; ++i) {
    if (i > 0) text += ", ";
    text += dims[i] < 0 ? "?" : std::to_string(dims[i]);
  }
  return text + (dims.size() > kShown ? ", ... " + std::to_string(dims.size()) + " dimensions]" : "]");
}

std::string Part::Describe() const {
  const std::string type = NumpyTypeName(dtype);
  return rank_known ? type + " " + DescribeDims(dims) : type + " of any shape";
}

std::string Feature::Describe(const std::vector<Part>& all) const {
  const std::string type = NumpyTypeName(all[static_cast<size_t>(values)].dtype);
  std::string text = kind == Kind::kSparse ? "a sparse " + type + " feature (a SparseTensor, a RaggedTensor"
                                           : "a ragged " + type + " feature (a RaggedTensor";
  return text + (levels == 1 ? ", or one list of values per row)" : ", or nested lists)");
}

namespace {

Part MakePart(const py::dict& from) {
  Part part;
  part.name = from["name"].cast<std::string>();
  part.tensor = from["tensor"].cast<std::string>();
  part.dtype = static_cast<tensorflow::DataType>(from["dtype"].cast<int>());
  part.numpy = py::reinterpret_borrow<py::object>(from["numpy"]);
  if (!PackedElementBytes(part.dtype, &part.element_bytes)) {
    throw std::invalid_argument("input '" + part.name + "' has type " + NumpyTypeName(part.dtype) +
                                ", which can't be given as an array");
  }
  if (!from["shape"].is_none()) {
    part.rank_known = true;
    part.dims = from["shape"].cast<std::vector<int64_t>>();
  }
  if (from.contains("like") && !from["like"].is_none()) part.like = from["like"].cast<int>();
  return part;
}

Feature MakeFeature(const py::dict& from, int number, std::vector<Part>* parts) {
  Feature feature;
  feature.name = from["name"].cast<std::string>();
  const std::string kind = from["kind"].cast<std::string>();
  feature.values = from["values"].cast<int>();
  feature.parts.push_back(feature.values);
  if (kind == "sparse") {
    feature.kind = Feature::Kind::kSparse;
    feature.indices = from["indices"].cast<int>();
    feature.dense_shape = from["dense_shape"].cast<int>();
    feature.parts.push_back(feature.indices);
    feature.parts.push_back(feature.dense_shape);
  } else if (kind == "ragged") {
    feature.kind = Feature::Kind::kRagged;
    feature.row_splits = from["row_splits"].cast<std::vector<int>>();
    if (feature.row_splits.empty()) throw std::invalid_argument("feature '" + feature.name + "' has no row_splits");
    feature.parts.insert(feature.parts.end(), feature.row_splits.begin(), feature.row_splits.end());
  } else {
    throw std::invalid_argument("feature '" + feature.name + "': unknown kind '" + kind + "'");
  }
  for (const int part : feature.parts) parts->at(static_cast<size_t>(part)).feature = number;
  if (feature.kind == Feature::Kind::kRagged) {
    feature.levels = static_cast<int>(feature.row_splits.size());
    return feature;
  }
  const Part& indices = parts->at(static_cast<size_t>(feature.indices));
  const Part& shape = parts->at(static_cast<size_t>(feature.dense_shape));
  int64_t rank = -1;
  if (indices.rank_known && indices.dims.size() == 2) rank = indices.dims[1];
  if (rank < 0 && shape.rank_known && shape.dims.size() == 1) rank = shape.dims[0];
  feature.levels = rank < 1 ? -1 : static_cast<int>(rank) - 1;
  return feature;
}

std::vector<Output> MakeOutputs(const py::handle& items) {
  std::vector<Output> outputs;
  for (const py::handle item : items.cast<py::list>()) {
    const py::dict from = item.cast<py::dict>();
    Output output;
    output.name = from["name"].cast<std::string>();
    output.tensor = from["tensor"].cast<std::string>();
    output.numpy = py::reinterpret_borrow<py::object>(from["numpy"]);
    output.of = from.contains("of") ? from["of"].cast<std::string>() : output.name;
    if (from.contains("kind")) output.kind = from["kind"].cast<std::string>();
    if (from.contains("role")) output.role = from["role"].cast<std::string>();
    if (from.contains("shape") && !from["shape"].is_none()) {
      output.rank_known = true;
      output.dims = from["shape"].cast<std::vector<int64_t>>();
    }
    outputs.push_back(std::move(output));
  }
  return outputs;
}

// `from`: {"packed", "outputs"}; the parts are set already.
Form MakeForm(const py::dict& from, std::vector<int> numbers, std::vector<std::string> tensors,
              const std::vector<Part>& parts, const std::string& context) {
  Form form;
  form.parts = std::move(numbers);
  form.tensors = std::move(tensors);
  bool has_strings = false;
  for (const int number : form.parts) {
    const Part& part = parts.at(static_cast<size_t>(number));
    form.element_bytes.push_back(part.element_bytes);
    form.layout.push_back(part.dtype);
    has_strings = has_strings || part.element_bytes == 0;
  }
  form.outputs = MakeOutputs(from["outputs"]);
  if (from["packed"].is_none()) return form;
  const py::dict packed = from["packed"].cast<py::dict>();
  form.packed = true;
  form.arena = packed["arena"].cast<std::string>();
  form.shapes = packed["shapes"].cast<std::string>();
  if (!packed["strings"].is_none()) form.strings = packed["strings"].cast<std::string>();
  if (form.strings.empty() && has_strings) throw std::invalid_argument(context + ": the packed form has no strings");
  return form;
}

// The parts of a feature, and what comes with its values, are of one side.
void SpreadSides(const std::vector<Feature>& features, std::vector<Part>* parts) {
  for (const Feature& feature : features) {
    const Part& values = parts->at(static_cast<size_t>(feature.values));
    const bool user = values.user, once = values.once;
    for (const int number : feature.parts) {
      parts->at(static_cast<size_t>(number)).user = user;
      parts->at(static_cast<size_t>(number)).once = once;
    }
  }
  for (Part& part : *parts) {
    if (part.like < 0) continue;
    part.user = parts->at(static_cast<size_t>(part.like)).user;
    part.once = parts->at(static_cast<size_t>(part.like)).once;
  }
}

}  // namespace

SignaturePlan::SignaturePlan(const py::dict& description) : context(description["context"].cast<std::string>()) {
  std::vector<int> numbers;
  std::vector<std::string> tensors;
  for (const py::handle item : description["parts"].cast<py::list>()) {
    numbers.push_back(static_cast<int>(parts.size()));
    parts.push_back(MakePart(item.cast<py::dict>()));
    tensors.push_back(parts.back().tensor);
  }
  for (const py::handle item : description["features"].cast<py::list>()) {
    features.push_back(MakeFeature(item.cast<py::dict>(), static_cast<int>(features.size()), &parts));
  }
  plain = MakeForm(description, numbers, tensors, parts, context);
  if (description.contains("users") && !description["users"].is_none()) {
    const py::dict users = description["users"].cast<py::dict>();
    for (const int number : users["parts"].cast<std::vector<int>>()) parts.at(static_cast<size_t>(number)).user = true;
    row_to_user = static_cast<int>(parts.size());
    Part part;
    part.name = users["row_to_user"].cast<std::string>();
    part.dtype = tensorflow::DT_INT64;
    part.element_bytes = sizeof(int64_t);
    part.numpy = py::dtype::of<int64_t>();
    part.rank_known = true;
    part.dims = {-1};
    part.optional = true;
    parts.push_back(std::move(part));
    if (!users["split"].is_none()) {
      const py::dict from = users["split"].cast<py::dict>();
      for (const int number : from["once"].cast<std::vector<int>>()) parts.at(static_cast<size_t>(number)).once = true;
      split = MakeForm(from, from["parts"].cast<std::vector<int>>(), from["tensors"].cast<std::vector<std::string>>(),
                       parts, context);
    }
    SpreadSides(features, &parts);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    entry_of_name[py::str(parts[i].name)] = py::int_(entries.size());
    entries.push_back({parts[i].name, static_cast<int>(i), parts[i].feature});
  }
  for (size_t i = 0; i < features.size(); ++i) {
    const py::str name(features[i].name);
    if (entry_of_name.contains(name)) {  // a name that is both the feature and one of its parts (TF2: a, a_1, a_2)
      entries[entry_of_name[name].cast<size_t>()].feature = static_cast<int>(i);
      continue;
    }
    entry_of_name[name] = py::int_(entries.size());
    entries.push_back({features[i].name, -1, static_cast<int>(i)});
  }
  for (size_t i = 0; i < entries.size(); ++i) entry_numbers[entries[i].name] = static_cast<int>(i);
}

}  // namespace tfctr
