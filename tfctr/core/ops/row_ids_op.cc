// TfctrRowIds: which row of a ragged batch each value is in.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfctrRowIds")
    .Input("row_splits: int64")
    .Input("keys: int64")
    .Output("row_ids: int64")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      ShapeHandle keys;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &keys));
      c->set_output(0, keys);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Row of each value of a ragged batch: r for values row_splits[r] to row_splits[r + 1] - 1.

row_splits: [rows + 1], from 0 to the number of keys, never falling; anything else is refused by number.
keys: [values]; only how many there are counts.
row_ids: [values], never falling.
)doc");

}  // namespace
}  // namespace tfctr
