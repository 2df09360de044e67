// Ops that bring user rows and item rows together where a model is split by user: TfctrAddUserRows and
// TfctrJoinUserRows.
//
// A split graph computes what depends on the user alone on U rows, one per user of the request, and the rest on B rows,
// one per item. row_to_user[b] in [0, U) says whose row b is. Where both meet, these ops read each user row as often as
// it is needed and write the result once; stock ops would first write B copies of the user rows.
//
// Axis 0 may have K entries per row (positions of a history, flattened): [U*K, ...] meets [B*K, ...].
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr int kItem = 0;
constexpr int kUser = 1;
constexpr int kRowToUser = 2;

absl::Status AddUserRowsShape(InferenceContext* c) {
  ShapeHandle item;
  ShapeHandle user;
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(kRowToUser), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(kItem), 1, &item));
  if (!c->RankKnown(item)) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(c->WithRank(c->input(kUser), c->Rank(item), &user));
  if (!c->RankKnown(user)) {
    c->set_output(0, item);
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(c->ReplaceDim(user, 0, c->Dim(item, 0), &user));
  ShapeHandle merged;
  TF_RETURN_IF_ERROR(c->Merge(item, user, &merged));
  c->set_output(0, merged);
  return absl::OkStatus();
}

absl::Status JoinUserRowsShape(InferenceContext* c) {
  int64_t axis = 0;
  std::vector<int64_t> widths;
  std::vector<int64_t> sides;
  TF_RETURN_IF_ERROR(c->GetAttr("axis", &axis));
  TF_RETURN_IF_ERROR(c->GetAttr("widths", &widths));
  TF_RETURN_IF_ERROR(c->GetAttr("sides", &sides));
  if (widths.size() != sides.size()) {
    return absl::InvalidArgumentError("TfctrJoinUserRows has " + std::to_string(widths.size()) + " widths and " +
                                      std::to_string(sides.size()) + " sides");
  }
  int64_t total = 0;
  for (const int64_t width : widths) total += width;
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(kRowToUser), 1, &unused));
  ShapeHandle item = c->input(kItem);
  if (!c->RankKnown(item)) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  if (axis < 1 || axis >= c->Rank(item)) {
    return absl::InvalidArgumentError("TfctrJoinUserRows: axis " + std::to_string(axis) + " is not one of 1 to " +
                                      std::to_string(c->Rank(item) - 1));
  }
  ShapeHandle joined;
  TF_RETURN_IF_ERROR(c->ReplaceDim(item, axis, c->MakeDim(total), &joined));
  ShapeHandle user;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(kUser), c->Rank(item), &user));
  if (c->RankKnown(user)) {
    TF_RETURN_IF_ERROR(c->ReplaceDim(user, axis, c->MakeDim(total), &user));
    TF_RETURN_IF_ERROR(c->ReplaceDim(user, 0, c->Dim(item, 0), &user));
    TF_RETURN_IF_ERROR(c->Merge(joined, user, &joined));
  }
  c->set_output(0, joined);
  return absl::OkStatus();
}

REGISTER_OP("TfctrAddUserRows")
    .Input("item: T")
    .Input("user: T")
    .Input("row_to_user: int64")
    .Output("sum: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("relu: bool = false")
    .SetShapeFn(AddUserRowsShape)
    .Doc(R"doc(
Adds to each item row the row of its user: sum[b] = item[b] + user[row_to_user[b]].

item: [B, ...], or [B * K, ...] with K entries per row.
user: [U, ...], or [U * K, ...]; the other sizes are those of item.
row_to_user: [B]; values in [0, U).
sum: item's shape.
relu: negative sums become 0 (NaN stays NaN).
)doc");

REGISTER_OP("TfctrJoinUserRows")
    .Input("item: T")
    .Input("user: T")
    .Input("row_to_user: int64")
    .Output("joined: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("axis: int")
    .Attr("widths: list(int) >= 1")
    .Attr("sides: list(int) >= 1")
    .SetShapeFn(JoinUserRowsShape)
    .Doc(R"doc(
Puts segments of item rows and of their users' rows side by side, in one pass.

item: [B, ...], or [B * K, ...] with K entries per row; along `axis` it holds the item segments, in order.
user: [U, ...], or [U * K, ...]; along `axis` it holds the user segments, in order.
row_to_user: [B]; values in [0, U).
joined: item's shape, with the sum of `widths` along `axis`.
axis: 1 or more.
widths: entries of each segment along `axis`.
sides: who has the segment: 0 the user, 1 the item, 2 both (their sum is taken).
)doc");

}  // namespace
}  // namespace tfctr
