#include "tfctr/core/runtime/output_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/tstring.h"

namespace tfctr {

namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::tstring;

bool IsInteger(const Tensor& tensor) {
  return tensor.dtype() == tensorflow::DT_INT32 || tensor.dtype() == tensorflow::DT_INT64;
}

int64_t NumberAt(const Tensor& tensor, int64_t i) {
  const char* data = static_cast<const char*>(tensor.data());
  if (tensor.dtype() == tensorflow::DT_INT64) {
    int64_t number;
    std::memcpy(&number, data + i * static_cast<int64_t>(sizeof(number)), sizeof(number));
    return number;
  }
  int32_t number;
  std::memcpy(&number, data + i * static_cast<int64_t>(sizeof(number)), sizeof(number));
  return number;
}

void SetNumber(int64_t number, int64_t i, Tensor* tensor) {
  if (tensor->dtype() == tensorflow::DT_INT64) {
    static_cast<int64_t*>(tensor->data())[i] = number;
  } else {
    static_cast<int32_t*>(tensor->data())[i] = static_cast<int32_t>(number);
  }
}

int64_t Entry(const Tensor& tensor) {
  int64_t elements = 1;
  for (int d = 1; d < tensor.dims(); ++d) elements *= tensor.dim_size(d);
  return elements;
}

// A tensor like `like` with another first dimension.
Tensor Rows(const Tensor& like, int64_t rows) {
  TensorShape shape = like.shape();
  shape.set_dim(0, rows);
  return Tensor(like.dtype(), shape);
}

// Copies `count` entries (of the first dimension), from number `from_first` on, to `to_first`.
void CopyEntries(const Tensor& from, int64_t from_first, int64_t count, int64_t to_first, Tensor* to) {
  const int64_t entry = Entry(from);
  if (count * entry == 0) return;
  if (from.dtype() == tensorflow::DT_STRING) {
    std::copy_n(static_cast<const tstring*>(from.data()) + from_first * entry, count * entry,
                static_cast<tstring*>(to->data()) + to_first * entry);
    return;
  }
  const auto bytes = static_cast<size_t>(entry) * static_cast<size_t>(tensorflow::DataTypeSize(from.dtype()));
  std::memcpy(static_cast<char*>(to->data()) + static_cast<size_t>(to_first) * bytes,
              static_cast<const char*>(from.data()) + static_cast<size_t>(from_first) * bytes,
              static_cast<size_t>(count) * bytes);
}

int64_t Sum(absl::Span<const int64_t> numbers) {
  int64_t sum = 0;
  for (const int64_t number : numbers) sum += number;
  return sum;
}

absl::Status Wrong(const std::string& name, const std::string& what) {
  return absl::InternalError("output '" + name + "' " + what);
}

// Whether pieces are of one dtype and, but for the first dimension, of one shape.
bool SameEntries(absl::Span<const std::vector<Tensor>> pieces, size_t number) {
  const Tensor& first = pieces[0][number];
  for (const std::vector<Tensor>& piece : pieces) {
    const Tensor& other = piece[number];
    if (other.dtype() != first.dtype() || other.dims() != first.dims() || first.dims() == 0) return false;
    for (int d = 1; d < first.dims(); ++d) {
      if (other.dim_size(d) != first.dim_size(d)) return false;
    }
  }
  return true;
}

Tensor JoinEntries(absl::Span<const std::vector<Tensor>> pieces, size_t number) {
  int64_t rows = 0;
  for (const std::vector<Tensor>& piece : pieces) rows += piece[number].dim_size(0);
  Tensor joined = Rows(pieces[0][number], rows);
  int64_t at = 0;
  for (const std::vector<Tensor>& piece : pieces) {
    CopyEntries(piece[number], 0, piece[number].dim_size(0), at, &joined);
    at += piece[number].dim_size(0);
  }
  return joined;
}

}  // namespace

absl::StatusOr<OutputPlan> OutputPlan::Make(const std::vector<Output>& outputs) {
  OutputPlan plan;
  plan.tensors_ = outputs.size();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Output& output = outputs[i];
    if (output.kind == "dense") {
      if (output.rank_known && (output.dims.empty() || output.dims[0] >= 0)) {
        return absl::FailedPreconditionError("output '" + output.name + "' has shape " + DescribeDims(output.dims) +
                                             ": no dimension for the rows of a batch");
      }
    } else if (output.kind != "ragged" && output.kind != "sparse") {
      return absl::FailedPreconditionError("output '" + output.name + "' is neither dense, sparse nor ragged");
    }
    if (output.kind == "dense" || plan.groups_.empty() || plan.groups_.back().name != output.of) {
      plan.groups_.emplace_back();
      plan.groups_.back().name = output.of;
      plan.groups_.back().kind = output.kind == "dense"    ? Group::Kind::kDense
                                 : output.kind == "ragged" ? Group::Kind::kRagged
                                                           : Group::Kind::kSparse;
    }
    Group& group = plan.groups_.back();
    if (output.role == "indices") {
      group.indices = i;
    } else if (output.role == "dense_shape") {
      group.dense_shape = i;
    } else if (output.role == "values") {
      group.values = i;
    } else {
      group.splits.push_back(i);
    }
  }
  return plan;
}

absl::Status OutputPlan::SplitDense(const Group& group, absl::Span<const Tensor> outputs,
                                    absl::Span<const int64_t> rows, std::vector<Tensors>* result) {
  const Tensor& whole = outputs[group.values];
  if (whole.dims() == 0 || whole.dim_size(0) != Sum(rows)) {
    return Wrong(group.name,
                 "has shape " + whole.shape().DebugString() + " for a batch of " + std::to_string(Sum(rows)) + " rows");
  }
  int64_t at = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    (*result)[r][group.values] = rows.size() == 1 ? whole : whole.Slice(at, at + rows[r]);
    at += rows[r];
  }
  return absl::OkStatus();
}

absl::Status OutputPlan::SplitRagged(const Group& group, absl::Span<const Tensor> outputs,
                                     absl::Span<const int64_t> rows, std::vector<Tensors>* result) {
  int64_t above = Sum(rows);
  for (size_t level = 0; level < group.splits.size(); ++level) {
    const Tensor& splits = outputs[group.splits[level]];
    bool fits =
        IsInteger(splits) && splits.dims() == 1 && splits.NumElements() == above + 1 && NumberAt(splits, 0) == 0;
    for (int64_t k = 0; fits && k < above; ++k) fits = NumberAt(splits, k) <= NumberAt(splits, k + 1);
    if (!fits) return Wrong(group.name, "has row_splits that do not fit the rows of its batch");
    above = NumberAt(splits, above);
  }
  const Tensor& values = outputs[group.values];
  if (values.dims() == 0 || values.dim_size(0) != above) return Wrong(group.name, "has other values than row_splits");
  int64_t first = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    int64_t begin = first, count = rows[r];
    for (const size_t number : group.splits) {
      const Tensor& splits = outputs[number];
      Tensor own(splits.dtype(), TensorShape({count + 1}));
      const int64_t base = NumberAt(splits, begin);
      for (int64_t k = 0; k <= count; ++k) SetNumber(NumberAt(splits, begin + k) - base, k, &own);
      const int64_t end = NumberAt(splits, begin + count);
      (*result)[r][number] = std::move(own);
      begin = base;
      count = end - base;
    }
    (*result)[r][group.values] = values.Slice(begin, begin + count);
    first += rows[r];
  }
  return absl::OkStatus();
}

absl::Status OutputPlan::SplitSparse(const Group& group, absl::Span<const Tensor> outputs,
                                     absl::Span<const int64_t> rows, std::vector<Tensors>* result) {
  const Tensor& indices = outputs[group.indices];
  const Tensor& values = outputs[group.values];
  const Tensor& shape = outputs[group.dense_shape];
  const int64_t total = Sum(rows);
  if (!IsInteger(indices) || !IsInteger(shape) || indices.dims() != 2 || values.dims() == 0 || shape.dims() != 1 ||
      indices.dim_size(1) == 0 || shape.NumElements() != indices.dim_size(1) ||
      values.dim_size(0) != indices.dim_size(0) || NumberAt(shape, 0) != total) {
    return Wrong(group.name, "is no sparse tensor of the rows of its batch");
  }
  const int64_t count = indices.dim_size(0), rank = indices.dim_size(1);
  std::vector<std::vector<int64_t>> entries(rows.size());
  std::vector<int64_t> ends(rows.size());
  int64_t end = 0;
  for (size_t r = 0; r < rows.size(); ++r) ends[r] = end += rows[r];
  for (int64_t k = 0; k < count; ++k) {
    const int64_t row = NumberAt(indices, k * rank);
    if (row < 0 || row >= total) return Wrong(group.name, "has indices outside of its rows");
    entries[static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), row) - ends.begin())].push_back(k);
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto own = static_cast<int64_t>(entries[r].size());
    Tensor own_indices = Rows(indices, own), own_values = Rows(values, own), own_shape = Rows(shape, rank);
    CopyEntries(shape, 0, rank, 0, &own_shape);
    SetNumber(rows[r], 0, &own_shape);
    for (int64_t k = 0; k < own; ++k) {
      const int64_t entry = entries[r][static_cast<size_t>(k)];
      CopyEntries(values, entry, 1, k, &own_values);
      CopyEntries(indices, entry, 1, k, &own_indices);
      SetNumber(NumberAt(indices, entry * rank) - (ends[r] - rows[r]), k * rank, &own_indices);
    }
    (*result)[r][group.indices] = std::move(own_indices);
    (*result)[r][group.values] = std::move(own_values);
    (*result)[r][group.dense_shape] = std::move(own_shape);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<OutputPlan::Tensors>> OutputPlan::Split(absl::Span<const Tensor> outputs,
                                                                   absl::Span<const int64_t> rows) const {
  if (outputs.size() != tensors_) return absl::InternalError("other outputs than the signature has");
  std::vector<Tensors> result(rows.size(), Tensors(tensors_));
  for (const Group& group : groups_) {
    const absl::Status status = group.kind == Group::Kind::kDense    ? SplitDense(group, outputs, rows, &result)
                                : group.kind == Group::Kind::kRagged ? SplitRagged(group, outputs, rows, &result)
                                                                     : SplitSparse(group, outputs, rows, &result);
    if (!status.ok()) return status;
  }
  return result;
}

absl::Status OutputPlan::JoinRagged(const Group& group, absl::Span<const Tensors> pieces, Tensors* result) {
  for (const size_t number : group.splits) {
    int64_t rows = 0;
    for (const Tensors& piece : pieces) {
      if (!IsInteger(piece[number]) || piece[number].dims() != 1 || piece[number].NumElements() == 0 ||
          piece[number].dtype() != pieces[0][number].dtype()) {
        return Wrong(group.name, "has row_splits that can't be joined");
      }
      rows += piece[number].NumElements() - 1;
    }
    Tensor joined = Rows(pieces[0][number], rows + 1);
    SetNumber(0, 0, &joined);
    int64_t at = 1, offset = 0;
    for (const Tensors& piece : pieces) {
      const int64_t count = piece[number].NumElements();
      for (int64_t k = 1; k < count; ++k) SetNumber(NumberAt(piece[number], k) + offset, at++, &joined);
      offset += NumberAt(piece[number], count - 1);
    }
    (*result)[number] = std::move(joined);
  }
  if (!SameEntries(pieces, group.values)) return Wrong(group.name, "has other values in each piece");
  (*result)[group.values] = JoinEntries(pieces, group.values);
  return absl::OkStatus();
}

absl::Status OutputPlan::JoinSparse(const Group& group, absl::Span<const Tensors> pieces, Tensors* result) {
  if (!SameEntries(pieces, group.values) || !SameEntries(pieces, group.indices) ||
      !IsInteger(pieces[0][group.indices]) || !SameEntries(pieces, group.dense_shape) ||
      !IsInteger(pieces[0][group.dense_shape]) || pieces[0][group.dense_shape].NumElements() == 0 ||
      pieces[0][group.indices].dims() != 2) {
    return Wrong(group.name, "has sparse pieces that can't be joined");
  }
  Tensor indices = JoinEntries(pieces, group.indices);
  Tensor shape = Rows(pieces[0][group.dense_shape], pieces[0][group.dense_shape].NumElements());
  for (int64_t d = 0; d < shape.NumElements(); ++d) SetNumber(0, d, &shape);
  int64_t at = 0, offset = 0;
  const int64_t rank = indices.dim_size(1);
  for (const Tensors& piece : pieces) {
    const Tensor& own = piece[group.dense_shape];
    if (own.NumElements() != shape.NumElements() || own.NumElements() != rank) {
      return Wrong(group.name, "has sparse pieces of different ranks");
    }
    for (int64_t k = 0; k < piece[group.indices].dim_size(0); ++k, ++at) {
      SetNumber(NumberAt(piece[group.indices], k * rank) + offset, at * rank, &indices);
    }
    offset += NumberAt(own, 0);
    SetNumber(offset, 0, &shape);
    for (int64_t d = 1; d < rank; ++d) SetNumber(std::max(NumberAt(shape, d), NumberAt(own, d)), d, &shape);
  }
  (*result)[group.values] = JoinEntries(pieces, group.values);
  (*result)[group.indices] = std::move(indices);
  (*result)[group.dense_shape] = std::move(shape);
  return absl::OkStatus();
}

absl::StatusOr<OutputPlan::Tensors> OutputPlan::Join(absl::Span<const Tensors> pieces) const {
  if (pieces.empty()) return absl::InternalError("no pieces to join");
  for (const Tensors& piece : pieces) {
    if (piece.size() != tensors_) return absl::InternalError("other outputs than the signature has");
  }
  Tensors result(tensors_);
  for (const Group& group : groups_) {
    absl::Status status;
    if (group.kind == Group::Kind::kRagged) {
      status = JoinRagged(group, pieces, &result);
    } else if (group.kind == Group::Kind::kSparse) {
      status = JoinSparse(group, pieces, &result);
    } else if (SameEntries(pieces, group.values)) {
      result[group.values] = JoinEntries(pieces, group.values);
    } else {
      status = Wrong(group.name, "has another shape in each piece");
    }
    if (!status.ok()) return status;
  }
  return result;
}

}  // namespace tfctr
