// TfctrDenseEngine: a dense tower that an engine runs, in one op.
//
// Everything an engine is made of stands in the attributes and in files of `store`, so that a graph holds no code of a
// provider: any TensorFlow that has the op can load it, and only a run needs the provider. Model::Load may choose
// another provider (tfctr/core/runtime/engine_choice.h).
//
// Errors are InvalidArgument for inputs and FailedPrecondition or the file's own for an engine that does not open; they
// name the engine (`label`), the provider and what was expected.
#include <map>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tfctr/core/engines/engine.h"

namespace tfctr {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status TensorsOf(InferenceContext* c, EngineSpec* spec) {
  for (const bool input : {true, false}) {
    const std::string kind = input ? "input" : "output";
    std::vector<std::string> names;
    std::vector<std::string> dims;
    TF_RETURN_IF_ERROR(c->GetAttr(kind + "_names", &names));
    TF_RETURN_IF_ERROR(c->GetAttr(kind + "_dims", &dims));
    const size_t count = static_cast<size_t>(input ? c->num_inputs() - 1 : c->num_outputs());
    if (names.size() != count || dims.size() != count) {
      return absl::InvalidArgumentError(std::to_string(count) + " " + kind + "s, but " + std::to_string(names.size()) +
                                        " names and " + std::to_string(dims.size()) + " shapes of them");
    }
    for (size_t k = 0; k < count; ++k) {
      // The dtype does not matter for shapes.
      const Status added = input ? spec->AddInput(names[k], DType::kFloat32, dims[k])
                                 : spec->AddOutput(names[k], DType::kFloat32, dims[k]);
      if (!added.ok()) return absl::InvalidArgumentError(added.message);
    }
  }
  return absl::OkStatus();
}

// Inputs have the shapes of `input_dims`; open sizes of outputs are those of the inputs.
absl::Status DenseEngineShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  EngineSpec spec;
  TF_RETURN_IF_ERROR(TensorsOf(c, &spec));
  std::vector<DimensionHandle> open(spec.open_names.size());
  for (DimensionHandle& dim : open) dim = c->UnknownDim();
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    const std::vector<EngineDim>& dims = spec.inputs[i].dims;
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(static_cast<int>(i) + 1), static_cast<int64_t>(dims.size()), &shape));
    for (size_t d = 0; d < dims.size(); ++d) {
      const DimensionHandle given = c->Dim(shape, static_cast<int64_t>(d));
      DimensionHandle merged;
      if (dims[d].open < 0) {
        TF_RETURN_IF_ERROR(c->WithValue(given, dims[d].size, &merged));
      } else {
        DimensionHandle& known = open[static_cast<size_t>(dims[d].open)];
        TF_RETURN_IF_ERROR(c->Merge(known, given, &merged));
        known = merged;
      }
    }
  }
  for (size_t k = 0; k < spec.outputs.size(); ++k) {
    std::vector<DimensionHandle> dims;
    for (const EngineDim& dim : spec.outputs[k].dims) {
      dims.push_back(dim.open < 0 ? c->MakeDim(dim.size) : open[static_cast<size_t>(dim.open)]);
    }
    c->set_output(static_cast<int>(k), c->MakeShape(dims));
  }
  return absl::OkStatus();
}

REGISTER_OP("TfctrDenseEngine")
    .Input("store: resource")
    .Input("inputs: Tin")
    .Output("outputs: Tout")
    .Attr("Tin: list(type) >= 1")
    .Attr("Tout: list(type) >= 1")
    .Attr("input_names: list(string) >= 1")
    .Attr("input_dims: list(string) >= 1")
    .Attr("output_names: list(string) >= 1")
    .Attr("output_dims: list(string) >= 1")
    .Attr("provider: string")
    .Attr("precision: string")
    .Attr("files: list(int) >= 0")
    .Attr("roles: list(string) >= 0")
    .Attr("options: string = '{}'")
    .Attr("threads: int >= 1 = 1")
    .Attr("label: string = ''")
    .SetIsStateful()  // reads files that are no inputs: must not be folded into a constant
    .SetShapeFn(DenseEngineShape)
    .Doc(R"doc(
Runs a dense tower by an engine, which is opened by the first run.

store: a TfctrStore handle whose files are open.
inputs: tensors by the names of `input_names`.
outputs: tensors by the names of `output_names`.
input_dims: shape of each input: sizes and names of open sizes ("N" rows, "U" user rows), as "N,416"; "" is a scalar.
output_dims: the same of each output; its open sizes are those of inputs.
provider: who runs it ("openvino", "tensorrt").
precision: "fp32", "bf16" or "fp16".
files: indices in the store of the files it is made from.
roles: what each of these files is ("onnx", "plan:sm89").
options: the provider's own options, JSON.
threads: of one run; 1 is the caller's own.
label: for messages.
)doc");

}  // namespace
}  // namespace tfctr
