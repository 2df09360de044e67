// What one signature takes and gives, prepared once when a model is opened so that a request costs only its own bytes.
//
// Words: a *part* is one tensor that the graph is fed with (a signature input, or one component of a composite input).
// A *feature* is a sparse or ragged input made of several parts. A request may name parts and features. A *form* is one
// way in which the graph takes a request: with all inputs at B rows (plain), or with user inputs once per user (split),
// each packed or input by input.
//
// Thread-safety: immutable after construction; the Python objects in it are touched under the GIL only.
#ifndef TFCTR_CORE_RUNTIME_SIGNATURE_PLAN_H_
#define TFCTR_CORE_RUNTIME_SIGNATURE_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "pybind11/numpy.h"
#include "pybind11/pybind11.h"
#include "tensorflow/core/framework/types.h"

namespace tfctr {

struct Part {
  std::string name;
  std::string tensor;  // graph tensor to feed, "x:0"
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  uint32_t element_bytes = 0;  // 0: strings
  pybind11::object numpy;      // np.dtype; object for strings
  bool rank_known = false;
  std::vector<int64_t> dims;  // -1: any; only when rank_known
  int feature = -1;           // the feature it belongs to
  int like = -1;              // the part with whose values it comes, one for one (weights of ids)
  bool optional = false;      // may be left out: the graph has a default
  bool user = false;          // may come with one row per user
  bool once = false;          // the split form takes it with one row per user

  // "int64 [?, 3]".
  std::string Describe() const;
};

struct Feature {
  enum class Kind { kSparse, kRagged };
  std::string name;
  Kind kind = Kind::kSparse;
  int values = -1;              // part numbers
  int indices = -1;             // sparse
  int dense_shape = -1;         // sparse
  std::vector<int> row_splits;  // ragged: outermost first
  std::vector<int> parts;       // all of the above
  int levels = 0;  // list nesting above the values: sparse rank - 1, or number of row_splits; -1: not known

  // "a sparse int64 feature (a SparseTensor, or one list of values per row)".
  std::string Describe(const std::vector<Part>& parts) const;
};

// One fetched tensor.
struct Output {
  std::string name;
  std::string tensor;
  pybind11::object numpy;  // np.dtype; object for strings
  // The output that it is a part of (its own name when that is dense), what kind that is and which part: "values",
  // "indices", "dense_shape", "row_splits", "row_splits_1" ...
  std::string of;
  std::string kind = "dense";
  std::string role = "values";
  bool rank_known = false;
  std::vector<int64_t> dims;  // -1: any; only when rank_known
};

// A key of a request: at least one of the two is set.
struct Entry {
  std::string name;
  int part = -1;
  int feature = -1;
};

struct Form {
  // The parts it takes, in the order of its layout; element_bytes and layout say the same of them.
  std::vector<int> parts;
  std::vector<uint32_t> element_bytes;
  std::vector<tensorflow::DataType> layout;
  std::vector<std::string> tensors;  // graph tensors of the parts; unused when packed
  bool packed = false;               // the graph takes arena, shapes and (unless "") strings
  std::string arena, shapes, strings;
  std::vector<Output> outputs;
};

struct SignaturePlan {
  // Raises ValueError/KeyError for a malformed description (a bug of the caller, not of a request).
  explicit SignaturePlan(const pybind11::dict& description);

  // The entry of this name, or nullptr. No Python.
  const Entry* FindEntry(std::string_view name) const {
    const auto found = entry_numbers.find(name);
    return found == entry_numbers.end() ? nullptr : &entries[static_cast<size_t>(found->second)];
  }

  std::string context;  // "model '...', signature '...'": starts every message
  std::vector<Part> parts;
  std::vector<Feature> features;
  std::vector<Entry> entries;
  pybind11::dict entry_of_name;                         // str -> int
  absl::flat_hash_map<std::string, int> entry_numbers;  // the same, without Python
  Form plain;
  std::optional<Form> split;
  int row_to_user = -1;  // part that says which user row each row belongs to; -1: no user features are declared
};

// NumPy's name of a type ("float32"), which is what requests are made of.
std::string NumpyTypeName(tensorflow::DataType dtype);

// "[2, ?]" for people; -1 prints as ?.
std::string DescribeDims(const std::vector<int64_t>& dims);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_SIGNATURE_PLAN_H_
