// Ops over the files of a bundle: the store handle, opening the files, tables as tensors, vocabulary lookups.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("TfctrStore")
    .Output("store: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Handle of a bundle's numbered set of files (tables, vocabularies, blobs, hash tables, overlays). Holds nothing until TfctrStoreOpen ran.
)doc");

REGISTER_OP("TfctrStoreOpen")
    .Input("store: resource")
    .Input("filenames: string")
    .Attr("kinds: list(string) >= 0")
    .Attr("fingerprints: list(string) >= 0")
    .Attr("bases: list(int) = []")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      return c->WithRank(c->input(1), 1, &unused);
    })
    .Doc(R"doc(
Maps the files, read-only and shared by the whole process, and makes them the set behind `store` (all or none).

filenames: path of file i. Local paths only.
kinds: "table", "vocab", "blob", "hash" or "overlay" for each file.
fingerprints: 16 hex digits that file i must have; "" does not check.
bases: for each overlay, in the order of the files, the index of the table or hash file that it lies over.
)doc");

REGISTER_OP("TfctrStoreOverlay")
    .Input("store: resource")
    .Input("indices: int64")
    .Input("filenames: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle indices;
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &indices));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
      return c->Merge(indices, c->input(2), &unused);
    })
    .Doc(R"doc(
Lays other overlays over the store's tables and hash files, all as one: a run sees those before or these, never a mix.
Tables that are not named have none afterwards. Where one can't be opened or fits no base, nothing changes.

indices: of the tables and hash files that get an overlay, each once.
filenames: path of the overlay of each.
)doc");

REGISTER_OP("TfctrTable")
    .Input("store: resource")
    .Output("value: dtype")
    .Attr("index: int >= 0")
    .Attr("dtype: type")
    .Attr("shape: shape")
    .SetIsStateful()  // else constant folding would copy the table into the graph
    .SetShapeFn(tensorflow::shape_inference::ExplicitShape)
    .Doc(R"doc(
Table file `index` of the store as a tensor that lies in the mapped file: no copy, no memory of its own. Where an
overlay lies over the table: in a private mapping whose pages with changed rows are memory of this process.
)doc");

REGISTER_OP("TfctrVocabFind")
    .Input("store: resource")
    .Input("keys: Tkeys")
    .Input("default_value: int64")
    .Output("values: int64")
    .Attr("index: int >= 0")
    .Attr("Tkeys: {string, int64, int32}")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Looks every key up in vocabulary file `index` of the store; `default_value` for keys that are not in it.
)doc");

REGISTER_OP("TfctrHashLookup")
    .Input("store: resource")
    .Input("keys: int64")
    .Output("rows: float")
    .Attr("index: int >= 0")
    .Attr("dim: int >= 1")
    .Attr("storage: {'float32', 'float16', 'bfloat16', 'int8'} = 'float32'")
    .SetIsStateful()  // which rows there are changes with the store's overlays, which are no inputs
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim = 0;
      ShapeHandle unused;
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), c->Vector(dim), &rows));
      c->set_output(0, rows);
      return absl::OkStatus();
    })
    .Doc(R"doc(
Rows of hash file `index` of the store, overlays included: a frozen embedding variable. Keys without a row get the
table's default row; no key is an error and nothing grows.

keys: of any shape.
rows: keys.shape + [dim].
dim: numbers of a row; the file must have rows of so many.
storage: what the file's rows are stored as; the file must hold this. Rows are float32 in any case.
)doc");

}  // namespace
}  // namespace tfctr
