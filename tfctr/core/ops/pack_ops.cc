// Op TfctrUnpack: the inputs of a packed signature, as the tensors the rest of the graph was written for.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tfctr {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status UnpackShapes(InferenceContext* context) {
  ShapeHandle unused;
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = context->WithRank(context->input(i), 1, &unused);
    if (!status.ok()) return status;
  }
  std::vector<tensorflow::PartialTensorShape> shapes;
  const absl::Status status = context->GetAttr("output_shapes", &shapes);
  if (!status.ok()) return status;
  if (!shapes.empty() && static_cast<int>(shapes.size()) != context->num_outputs()) {
    return absl::InvalidArgumentError("TfctrUnpack has " + std::to_string(context->num_outputs()) + " outputs but " +
                                      std::to_string(shapes.size()) + " output_shapes");
  }
  for (int i = 0; i < context->num_outputs(); ++i) {
    ShapeHandle shape = context->UnknownShape();
    if (!shapes.empty()) {
      const absl::Status made = context->MakeShapeFromPartialTensorShape(shapes[static_cast<size_t>(i)], &shape);
      if (!made.ok()) return made;
    }
    context->set_output(i, shape);
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfctrUnpack")
    .Input("arena: uint8")
    .Input("shapes: int64")
    .Input("strings: string")
    .Output("outputs: Tout")
    .Attr("layout: list(type) >= 1")
    .Attr("emit: list(int) >= 1")
    .Attr("Tout: list(type) >= 1")
    .Attr("output_shapes: list(shape) = []")
    .SetShapeFn(UnpackShapes)
    .Doc(R"doc(
Gives inputs of a packed request back as tensors, without a copy.

arena: uint8[n]; the numeric inputs, each segment starting at a multiple of 64 bytes.
shapes: int64[m]; for each input of `layout`: rank, d0, ..., d(rank-1).
strings: string[s]; the elements of the string inputs, in order.
outputs: output k is input number `emit[k]`; all share memory with `arena` or `strings`.
layout: dtypes of all packed inputs, in order.
emit: which inputs are given back.
Tout: dtypes of the outputs: Tout[k] = layout[emit[k]].
output_shapes: what is known of the outputs' shapes, one per output, or empty. A request that disagrees is InvalidArgument.
)doc");

}  // namespace tfctr
