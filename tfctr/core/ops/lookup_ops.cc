// TfctrFusedLookup: all embedding lookups of one group in one op.
//
// A group is a set of lookups that end in the same outputs: one output per concatenation or per single result. What
// each lookup computes is written in `spec` (graph_opt/lookup_spec.py describes every word): which table file, where
// its ids, row numbers, weights and masks come from, how raw values become row numbers, how rows are combined, which
// columns of which output they fill. Copies put numeric inputs of a folded concat beside them.
//
// A source `in:K` is the K-th input of a packed request: `layout` lists the dtypes of all packed inputs, and `arena`,
// `shapes` and `strings` hold them (tfctr/core/lookup/packed_layout.h). A source `arg:J` is args[J]. A graph that is
// fed unpacked gives empty constants for the first three and an empty layout.
//
// Tables and vocabularies are files of `store` (TfctrStore), by number; they must be open when the op runs.
//
// Errors are InvalidArgument and name the lookup, its table, the row and the id.
#include <string>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tfctr/core/lookup/spec.h"

namespace tfctr {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr int kFixedInputs = 4;  // store, arena, shapes, strings

// rows: [?, columns]; like: the ids' shape with the columns behind it, where the ids are an arg of known rank.
absl::Status FusedLookupShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  for (int i = 1; i < kFixedInputs; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
  std::string spec;
  TF_RETURN_IF_ERROR(c->GetAttr("spec", &spec));
  const Result<std::vector<OutputSpec>> outputs = ParseOutputs(spec);
  if (!outputs.ok()) return absl::InvalidArgumentError(outputs.status().message);
  if (outputs.value().size() != static_cast<size_t>(c->num_outputs())) {
    return absl::InvalidArgumentError("the spec has " + std::to_string(outputs.value().size()) + " outputs, Tout has " +
                                      std::to_string(c->num_outputs()));
  }
  for (int k = 0; k < c->num_outputs(); ++k) {
    const OutputSpec& output = outputs.value()[k];
    const DimensionHandle columns = c->MakeDim(output.columns);
    if (output.form == OutputForm::kRows) {
      c->set_output(k, c->Matrix(c->UnknownDim(), columns));
      continue;
    }
    ShapeHandle shape = c->UnknownShape();
    if (output.like_arg >= 0 && kFixedInputs + output.like_arg < c->num_inputs()) {
      const ShapeHandle ids = c->input(kFixedInputs + output.like_arg);
      TF_RETURN_IF_ERROR(c->Concatenate(ids, c->Vector(columns), &shape));
    }
    c->set_output(k, shape);
  }
  return absl::OkStatus();
}

REGISTER_OP("TfctrFusedLookup")
    .Input("store: resource")
    .Input("arena: uint8")
    .Input("shapes: int64")
    .Input("strings: string")
    .Input("args: Targs")
    .Output("outputs: Tout")
    .Attr("spec: string")
    .Attr("layout: list(type) >= 0 = []")
    .Attr("Targs: list(type) >= 0")
    .Attr("Tout: list(type) >= 1")
    .SetIsStateful()  // reads files that are no inputs: must not be folded into a constant
    .SetShapeFn(FusedLookupShape)
    .Doc(R"doc(
Looks up and combines embedding rows for a group of features.

store: a TfctrStore handle whose files are open.
arena: packed numeric inputs; empty when nothing is packed.
shapes: rank and dimensions of each packed input.
strings: elements of the packed string inputs.
args: tensors that the spec calls arg:0, arg:1, ...
outputs: one tensor per output line of the spec; [rows, columns], or the ids' shape followed by columns.
spec: the lookups, as text.
layout: dtypes of the packed inputs.
)doc");

}  // namespace
}  // namespace tfctr
