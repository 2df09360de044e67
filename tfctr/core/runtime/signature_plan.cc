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
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ", ";
    text += dims[i] < 0 ? "?" : std::to_string(dims[i]);
  }
  return text + "]";
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

}  // namespace

SignaturePlan::SignaturePlan(const py::dict& description) : context(description["context"].cast<std::string>()) {
  for (const py::handle item : description["parts"].cast<py::list>()) {
    parts.push_back(MakePart(item.cast<py::dict>()));
    element_bytes.push_back(parts.back().element_bytes);
    layout.push_back(parts.back().dtype);
    has_strings = has_strings || parts.back().element_bytes == 0;
  }
  for (const py::handle item : description["features"].cast<py::list>()) {
    features.push_back(MakeFeature(item.cast<py::dict>(), static_cast<int>(features.size()), &parts));
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
  if (!description["packed"].is_none()) {
    const py::dict from = description["packed"].cast<py::dict>();
    packed = true;
    arena = from["arena"].cast<std::string>();
    shapes = from["shapes"].cast<std::string>();
    if (!from["strings"].is_none()) strings = from["strings"].cast<std::string>();
    if (strings.empty() && has_strings) throw std::invalid_argument(context + ": the packed form has no strings");
  }
  for (const py::handle item : description["outputs"].cast<py::list>()) {
    const py::dict from = item.cast<py::dict>();
    outputs.push_back({from["name"].cast<std::string>(), from["tensor"].cast<std::string>(),
                       py::reinterpret_borrow<py::object>(from["numpy"])});
  }
}

}  // namespace tfctr
