// TfctrPackRows: everything that crosses from the embedding device to the dense device, as one tensor.
//
// The packed tensor is float32 [K, B]; float32 stands for 32 bits of anything. A tensor [B, ...] whose row takes w
// words (4 bytes, the last one padded with zeros) lies, row after row, in w consecutive rows of the packed tensor, so
// that the other side takes it out with a slice of axis 0 and a reshape, and reads B off the shape. A tensor [B, T,
// ...] of unknown T counts as one with T rows of words for each of its own. Tensors [U, ...] whose U has nothing to do
// with B lie behind them: row u of all of them side by side, the whole filled up to a multiple of B words (nothing at
// all where B is 0).
#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"

namespace tfctr {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status PackRowsShape(InferenceContext* c) {
  std::vector<tensorflow::DataType> types;
  std::vector<int64_t> columns;
  int64_t by_rows = 0;
  int64_t open = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &types));
  TF_RETURN_IF_ERROR(c->GetAttr("columns", &columns));
  TF_RETURN_IF_ERROR(c->GetAttr("by_rows", &by_rows));
  TF_RETURN_IF_ERROR(c->GetAttr("open", &open));
  if (columns.size() != types.size() || by_rows > static_cast<int64_t>(types.size())) {
    return absl::InvalidArgumentError("columns must have one entry per tensor, and by_rows can be at most that");
  }
  DimensionHandle rows = c->UnknownDim();
  int64_t words = 0;
  for (int64_t i = 0; i < by_rows; ++i) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(static_cast<int>(i)), 1, &shape));
    if (c->RankKnown(shape)) TF_RETURN_IF_ERROR(c->Merge(rows, c->Dim(shape, 0), &rows));
    const size_t k = static_cast<size_t>(i);
    words += (columns[k] * tensorflow::DataTypeSize(types[k]) + 3) / 4;
  }
  const bool all = by_rows == static_cast<int64_t>(types.size()) && open == 0;
  c->set_output(0, c->Matrix(all ? c->MakeDim(words) : c->UnknownDim(), rows));
  return absl::OkStatus();
}

REGISTER_OP("TfctrPackRows")
    .Input("tensors: T")
    .Output("packed: float")
    .Attr("T: list(type) >= 1")
    .Attr("columns: list(int) >= 1")
    .Attr("by_rows: int >= 1")
    .Attr("open: int >= 0 = 0")
    .Attr("names: list(string) >= 0 = []")
    .SetShapeFn(PackRowsShape)
    .Doc(R"doc(
Packs tensors into one float32 matrix, bit by bit.

tensors: the first `by_rows` have B rows, the others U rows; inner dimensions are fixed, but for axis 1 of open ones.
packed: [K, B].
columns: elements of one row of each tensor; of one position of an open one.
by_rows: how many have B rows.
open: how many of these, at their end, are [B, T, ...] with the same T.
names: of the tensors, for errors. Other row counts than these are InvalidArgument.
)doc");

}  // namespace
}  // namespace tfctr
