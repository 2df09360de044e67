// Sparse and ragged features given as a whole: SparseTensor, RaggedTensor, nested lists or arrays of rows.
#include <algorithm>
#include <cstring>

#include "tfctr/core/runtime/packer.h"

namespace tfctr {

namespace py = pybind11;

namespace {

const Part& At(const SignaturePlan& plan, int part) { return plan.parts[static_cast<size_t>(part)]; }
PartValue* At(std::vector<PartValue>* values, int part) { return &(*values)[static_cast<size_t>(part)]; }

// Row lists and their values, before they are written as row_splits or as indices.
struct Rows {
  std::vector<std::vector<int64_t>> splits;  // outermost first
  int64_t count = 0;                         // of the outermost dimension
};

// How deep the nesting of lists goes, looking at first elements only.
int ListDepth(py::handle value) {
  int depth = 0;
  py::object at = py::reinterpret_borrow<py::object>(value);
  while (IsNesting(at)) {
    if (++depth > static_cast<int>(kMaxListDepth)) break;
    if (PySequence_Size(at.ptr()) == 0) break;
    at = py::reinterpret_steal<py::object>(PySequence_GetItem(at.ptr(), 0));
  }
  if (py::isinstance<py::array>(at)) depth += static_cast<int>(py::reinterpret_borrow<py::array>(at).ndim());
  return depth;
}

// A value of `levels` + 1 or more dimensions: every row has the same length.
void CutRows(const Part& part, int levels, PartValue* out, Rows* rows) {
  rows->count = out->dims[0];
  int64_t outer = out->dims[0];
  for (int level = 0; level < levels; ++level) {
    const int64_t width = out->dims[static_cast<size_t>(level) + 1];
    std::vector<int64_t> splits(static_cast<size_t>(outer) + 1);
    for (int64_t i = 0; i <= outer; ++i) splits[static_cast<size_t>(i)] = i * width;
    rows->splits.push_back(std::move(splits));
    outer *= width;
  }
  out->dims.erase(out->dims.begin(), out->dims.begin() + levels);
  out->dims[0] = outer;
  CheckShape(part, out);
}

void TakeRectangle(const Part& part, const py::array& array, int levels, PartValue* out, Rows* rows) {
  Part whole = part;  // the same type, any shape: the array has the dimensions of the rows as well
  whole.rank_known = false;
  TakeArray(whole, array, out);
  if (static_cast<int>(out->dims.size()) <= levels) throw Mismatch(DescribeValue(array));
  CutRows(part, levels, out, rows);
}

void TakeRows(const Part& part, py::handle value, int levels, PartValue* out, Rows* rows) {
  py::object held = py::reinterpret_borrow<py::object>(value);
  if (!py::isinstance<py::array>(held) && !IsNesting(held) && py::hasattr(held, "numpy")) held = held.attr("numpy")();
  if (py::isinstance<py::array>(held)) {
    const py::array array = py::reinterpret_borrow<py::array>(held);
    if (array.dtype().kind() != 'O' || array.ndim() > levels) return TakeRectangle(part, array, levels, out, rows);
    held = array.attr("tolist")();  // object array of rows
  }
  if (!IsNesting(held)) throw Mismatch(DescribeValue(held));
  TakeRaggedLists(part, held, levels, out, &rows->splits);
  rows->count = levels > 0 ? static_cast<int64_t>(rows->splits[0].size()) - 1 : out->dims[0];
}

// Reads a RaggedTensor's components.
void TakeRaggedTensor(const Part& part, py::handle value, int levels, PartValue* out, Rows* rows) {
  const py::sequence nested = value.attr("nested_row_splits").cast<py::sequence>();
  if (static_cast<int>(nested.size()) != levels) {
    throw Mismatch("a RaggedTensor of " + std::to_string(nested.size()) + " ragged dimension(s)");
  }
  Part splits_part;
  splits_part.dtype = tensorflow::DT_INT64;
  splits_part.element_bytes = sizeof(int64_t);
  splits_part.numpy = py::dtype::of<int64_t>();
  for (const py::handle item : nested) {
    PartValue splits;
    TakePart(splits_part, item, &splits);
    std::vector<int64_t> numbers(static_cast<size_t>(splits.elements));
    for (int64_t i = 0; i < splits.elements; ++i) numbers[static_cast<size_t>(i)] = IntegerAt(splits_part, splits, i);
    if (numbers.empty() || numbers[0] != 0 || !std::is_sorted(numbers.begin(), numbers.end())) {
      throw Mismatch("a RaggedTensor whose row_splits do not start at 0 and rise");
    }
    rows->splits.push_back(std::move(numbers));
  }
  TakePart(part, value.attr("flat_values"), out);
  for (size_t level = 0; level < rows->splits.size(); ++level) {
    const int64_t below = level + 1 < rows->splits.size() ? static_cast<int64_t>(rows->splits[level + 1].size()) - 1
                          : out->dims.empty()             ? -1
                                                          : out->dims[0];
    if (rows->splits[level].back() != below) throw Mismatch("a RaggedTensor whose row_splits do not match its values");
  }
  rows->count = static_cast<int64_t>(rows->splits[0].size()) - 1;
}

// Writes rows as a SparseTensor's indices [N, rank] and dense_shape [rank].
void WriteSparse(const SignaturePlan& plan, const Feature& feature, const Rows& rows, std::vector<PartValue>* values) {
  const size_t rank = rows.splits.size() + 1;
  const int64_t count = At(values, feature.values)->elements;
  std::vector<int64_t> shape(rank, 0);
  shape[0] = rows.count;
  // The multi-index of every entry of the current level, extended level by level.
  std::vector<int64_t> indices(static_cast<size_t>(rows.count));
  for (int64_t i = 0; i < rows.count; ++i) indices[static_cast<size_t>(i)] = i;
  for (size_t level = 0; level + 1 < rank; ++level) {
    const std::vector<int64_t>& splits = rows.splits[level];
    const size_t width = level + 1;
    std::vector<int64_t> next;
    next.reserve(static_cast<size_t>(splits.back()) * (width + 1));
    for (size_t row = 0; row + 1 < splits.size(); ++row) {
      const int64_t length = splits[row + 1] - splits[row];
      shape[level + 1] = std::max(shape[level + 1], length);
      for (int64_t column = 0; column < length; ++column) {
        next.insert(next.end(), indices.begin() + static_cast<std::ptrdiff_t>(row * width),
                    indices.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
        next.push_back(column);
      }
    }
    indices = std::move(next);
  }
  TakeIntegers(At(plan, feature.indices), indices, {count, static_cast<int64_t>(rank)}, At(values, feature.indices));
  TakeIntegers(At(plan, feature.dense_shape), shape, {static_cast<int64_t>(rank)}, At(values, feature.dense_shape));
}

void WriteRagged(const SignaturePlan& plan, const Feature& feature, const Rows& rows, std::vector<PartValue>* values) {
  for (size_t level = 0; level < feature.row_splits.size(); ++level) {
    const int number = feature.row_splits[level];
    const auto length = static_cast<int64_t>(rows.splits[level].size());
    TakeIntegers(At(plan, number), rows.splits[level], {length}, At(values, number));
  }
}

void TakeSparse(const SignaturePlan& plan, const Feature& feature, py::handle value, std::vector<PartValue>* values) {
  if (IsSparse(value)) {
    TakePart(At(plan, feature.indices), value.attr("indices"), At(values, feature.indices));
    TakePart(At(plan, feature.values), value.attr("values"), At(values, feature.values));
    TakePart(At(plan, feature.dense_shape), value.attr("dense_shape"), At(values, feature.dense_shape));
    return;
  }
  Rows rows;
  const Part& part = At(plan, feature.values);
  if (IsRagged(value)) {
    const int levels = feature.levels >= 0 ? feature.levels : py::cast<int>(value.attr("ragged_rank"));
    TakeRaggedTensor(part, value, levels, At(values, feature.values), &rows);
  } else {
    const int levels = feature.levels >= 0 ? feature.levels : std::max(ListDepth(value), 2) - 1;
    TakeRows(part, value, levels, At(values, feature.values), &rows);
  }
  if (At(values, feature.values)->dims.size() != 1) throw Mismatch(DescribeValue(value));
  WriteSparse(plan, feature, rows, values);
}

template <typename T>
bool RisesAs(const char* data, int64_t count, int64_t end) {
  const auto at = [&](int64_t i) {
    T number;
    std::memcpy(&number, data + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return number;
  };
  bool rises = at(0) == 0 && static_cast<int64_t>(at(count - 1)) == end;
  for (int64_t i = 1; i < count; ++i) rises &= at(i - 1) <= at(i);
  return rises;
}

// Whether row_splits begin at 0, never fall, and end at `end`.
bool Rises(const Part& part, const PartValue& splits, int64_t end) {
  if (splits.dims.size() != 1 || splits.elements == 0) return false;
  return part.dtype == tensorflow::DT_INT64 ? RisesAs<int64_t>(splits.data, splits.elements, end)
                                            : RisesAs<int32_t>(splits.data, splits.elements, end);
}

}  // namespace

void TakeFeature(const SignaturePlan& plan, const Feature& feature, py::handle value, std::vector<PartValue>* values) {
  if (feature.kind == Feature::Kind::kSparse) return TakeSparse(plan, feature, value, values);
  if (IsSparse(value)) throw Mismatch("a SparseTensor");
  Rows rows;
  const Part& part = At(plan, feature.values);
  if (IsRagged(value)) {
    TakeRaggedTensor(part, value, feature.levels, At(values, feature.values), &rows);
  } else {
    TakeRows(part, value, feature.levels, At(values, feature.values), &rows);
  }
  WriteRagged(plan, feature, rows, values);
}

void SplitRectangle(const SignaturePlan& plan, const Feature& feature, std::vector<PartValue>* values) {
  const Part& part = At(plan, feature.values);
  PartValue* const out = At(values, feature.values);
  const std::vector<int64_t> dims(out->dims.begin(), out->dims.end());
  const int levels = feature.levels >= 0 ? feature.levels : std::max(static_cast<int>(dims.size()), 2) - 1;
  const auto refuse = [&] { throw Mismatch(NumpyTypeName(part.dtype) + " " + DescribeDims(dims)); };
  if (static_cast<int>(dims.size()) <= levels) refuse();
  int64_t rows_of_level = 1;  // rows without values are not in the bytes of the request: their number is a claim
  for (int level = 0; level <= levels && out->elements == 0; ++level) {
    constexpr int64_t kMaxEmptyRows = int64_t{1} << 20;
    if (__builtin_mul_overflow(rows_of_level, dims[static_cast<size_t>(level)], &rows_of_level)) refuse();
    if (rows_of_level > kMaxEmptyRows) refuse();
  }
  Rows rows;
  CutRows(part, levels, out, &rows);
  if (feature.kind == Feature::Kind::kRagged) return WriteRagged(plan, feature, rows, values);
  if (out->dims.size() != 1) refuse();
  WriteSparse(plan, feature, rows, values);
}

void SetRows(const SignaturePlan& plan, const Feature& feature, std::vector<std::vector<int64_t>> splits,
             std::vector<PartValue>* values) {
  Rows rows;
  rows.count = static_cast<int64_t>(splits[0].size()) - 1;
  rows.splits = std::move(splits);
  if (feature.kind == Feature::Kind::kRagged) return WriteRagged(plan, feature, rows, values);
  const auto& dims = At(values, feature.values)->dims;
  if (dims.size() != 1) throw Mismatch(DescribeDims(std::vector<int64_t>(dims.begin(), dims.end())));
  WriteSparse(plan, feature, rows, values);
}

void CheckFeature(const SignaturePlan& plan, const Feature& feature, const std::vector<PartValue>& values) {
  const auto value_at = [&](int part) -> const PartValue& { return values[static_cast<size_t>(part)]; };
  const PartValue& flat = value_at(feature.values);
  const int64_t count = flat.dims.empty() ? -1 : flat.dims[0];
  const std::string values_text = std::to_string(count) + " values ('" + At(plan, feature.values).name + "')";
  if (feature.kind == Feature::Kind::kRagged) {
    const int last = feature.row_splits.back();
    const PartValue& splits = value_at(last);
    if (splits.dims.size() != 1 || splits.elements == 0)
      throw Mismatch("empty row_splits ('" + At(plan, last).name + "')");
    const int64_t end = IntegerAt(At(plan, last), splits, splits.elements - 1);
    if (end != count) {
      throw Mismatch(values_text + " and row_splits that end at " + std::to_string(end) + " ('" + At(plan, last).name +
                     "')");
    }
    for (size_t level = 0; level < feature.row_splits.size(); ++level) {
      const bool innermost = level + 1 == feature.row_splits.size();
      const int64_t below = innermost ? count : value_at(feature.row_splits[level + 1]).elements - 1;
      const int number = feature.row_splits[level];
      if (!Rises(At(plan, number), value_at(number), below)) {
        throw Mismatch("row_splits ('" + At(plan, number).name + "') that do not rise from 0 to the " +
                       std::to_string(below) + (innermost ? " values" : " rows of the next level"));
      }
    }
    return;
  }
  const PartValue& indices = value_at(feature.indices);
  const PartValue& shape = value_at(feature.dense_shape);
  if (indices.dims.size() != 2 || indices.dims[0] != count) {
    const std::vector<int64_t> dims(indices.dims.begin(), indices.dims.end());
    throw Mismatch(values_text + " and indices of shape " + DescribeDims(dims) + " ('" +
                   At(plan, feature.indices).name + "')");
  }
  if (shape.elements != indices.dims[1]) {
    throw Mismatch("indices of " + std::to_string(indices.dims[1]) + " columns ('" + At(plan, feature.indices).name +
                   "') and a dense_shape of " + std::to_string(shape.elements) + " numbers ('" +
                   At(plan, feature.dense_shape).name + "')");
  }
}

}  // namespace tfctr
