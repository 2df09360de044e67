// Ops that save, restore, export and import embedding tables. docs/embedding_variable.md says what is kept and what a
// restore refuses; docs/decisions/0021 why the tensors lie as they do.
//
// Tensors of a table NAME in a bundle, n = its rows, in one order:
//   NAME/config              string, JSON: format, rows, what was left out, the table's configuration
//   NAME/keys                int64 [n]
//   NAME/values              float [n, dim]
//   NAME/slots/SLOT          float [n, width]         every optimizer slot
//   NAME/frequency           int64 [n]                where the table counts occurrences
//   NAME/last_step, NAME/last_time   int64 [n]        where it keeps them; last_time in milliseconds since 1970
//   NAME/counters/keys, counters/counts, counters/last_step, counters/last_time   int64 [m]  keys not admitted yet
//   NAME/bloom               uint8 [bytes]            a Bloom filter's cells
// A delta has the same tensors of the rows and counters that changed since the save before it, `bloom` only if it
// changed, and
//   NAME/removed             int64 [r], in order      keys whose row, or count, went; some have a count again
#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfctr {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Inputs: a prefix, the step of each table, the tables.
absl::Status PrefixStepsTables(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(c->Merge(c->input(1), c->Vector(c->num_inputs() - 2), &unused));
  for (int i = 2; i < c->num_inputs(); ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  return absl::OkStatus();
}

absl::Status AllScalars(InferenceContext* c) {
  ShapeHandle unused;
  for (int i = 0; i < c->num_inputs(); ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  return absl::OkStatus();
}

REGISTER_OP("TfctrEvSave")
    .Input("prefix: string")
    .Input("step: int64")
    .Input("handles: N * resource")
    .Output("written: string")
    .Attr("N: int >= 1")
    .Attr("names: list(string) >= 1")
    .Attr("key_dtypes: list(string) = []")
    .Attr("slots: bool = true")
    .Attr("counters: bool = true")
    .Attr("steps: bool = true")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(PrefixStepsTables(c));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Streams tables into one TensorFlow bundle `prefix`, slice by slice: extra memory is one shard of one table.

The rows of each shard are of one moment. Keys inserted after the save of their table began may be left out. The files
are synced before the op returns, and removed where it fails. Tables that evict on save do so first.

step: [N], the step of each table: for eviction on save, and as last step of all rows where steps are left out; -1 where
  there is none.
names: the tensors of handle i are called names[i]/keys and so on; "" gives them no folder.
key_dtypes: of what its users look up, "int64" or "string" (fingerprints), for each table; none, or "": not known.
slots, counters, steps: false leaves optimizer slots; frequency and counters of keys not admitted; last steps and times
  out of the checkpoint.
written: `prefix`, once the bundle is whole.
)doc");

REGISTER_OP("TfctrEvMark")
    .Input("handle: resource")
    .Output("instance: int64")
    .Output("mark: int64")
    .Output("origin: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(AllScalars(c));
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Ends a table's mark: what is written from now on has changed since it. Waits for updates that are on their way.

instance: a random number of the table's contents: a restore puts others in their place.
mark: the one that ended, for TfctrEvSaveDelta; -1 where the table does not remember changes.
origin: "SAVE/NAME" of what the table was exactly restored from, up to the end of mark 1; "" for nothing.
)doc");

REGISTER_OP("TfctrEvSaveDelta")
    .Input("prefix: string")
    .Input("step: int64")
    .Input("since: int64")
    .Input("instance: int64")
    .Input("save: string")
    .Input("previous_name: string")
    .Input("previous_save: string")
    .Input("handles: N * resource")
    .Output("written: string")
    .Attr("N: int >= 1")
    .Attr("names: list(string) >= 1")
    .Attr("key_dtypes: list(string) = []")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      const DimensionHandle tables = c->MakeDim(c->num_inputs() - 7);
      for (int i = 0; i < c->num_inputs(); ++i) {
        const bool per_table = i >= 1 && i <= 3;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), per_table ? 1 : 0, &unused));
        if (per_table) TF_RETURN_IF_ERROR(c->Merge(c->input(i), c->Vector(tables), &unused));
      }
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
TfctrEvSave of what changed: rows that were written since a mark, counts likewise, and NAME/removed, the keys whose row
or count went. NAME/config has format 2 and says which save this follows; TfctrEvRestore of a delta reads those before
it from the same folder.

A table is saved whole, as by TfctrEvSave, where `since` is -1, where it is not the `instance` that was marked, and where
so much changed that a delta would take much memory and be no smaller.

since, instance: [N], what TfctrEvMark gave before the save that this one follows.
save: a random name of this save.
previous_name, previous_save: file name of the prefix of the save that this one follows, and its `save`.
)doc");

REGISTER_OP("TfctrEvRestore")
    .Input("prefix: string")
    .Input("step: int64")
    .Input("handles: N * resource")
    .Attr("N: int >= 1")
    .Attr("names: list(string) >= 1")
    .Attr("key_dtypes: list(string) = []")
    .Attr("slots: bool = true")
    .Attr("counters: bool = true")
    .Attr("steps: bool = true")
    .SetIsStateful()
    .SetShapeFn(PrefixStepsTables)
    .Doc(R"doc(
Replaces the contents of tables by what TfctrEvSave wrote. New tables are built aside and take their place together:
after an error every table is what it was, and a lookup meanwhile sees the old or the new rows, never some of both. A
delta is restored with the saves that it builds upon, which lie in its folder.

key_dtypes: a table of one key dtype refuses the rows of another, whose keys would never be found.
step: [N], for each table the last step of its rows where the checkpoint has none or `steps` is false; -1 takes the step
  of the save.
slots, counters, steps: false leaves those out: slots get their initial values, counts begin at 0, rows are as old as
  the restore.
)doc");

REGISTER_OP("TfctrEvExport")
    .Input("handle: resource")
    .Input("first_shard: int64")
    .Input("num_shards: int64")
    .Output("keys: int64")
    .Output("values: float")
    .Output("slots: K * float")
    .Output("frequency: int64")
    .Output("last_step: int64")
    .Output("last_time: int64")
    .Output("shards: int64")
    .Attr("K: int >= 0")
    .Attr("slot_names: list(string) >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(AllScalars(c));
      int slots = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("K", &slots));
      const DimensionHandle rows = c->UnknownDim();
      c->set_output(0, c->Vector(rows));
      for (int i = 0; i <= slots; ++i) c->set_output(1 + i, c->Matrix(rows, c->UnknownDim()));
      for (int i = 0; i < 3; ++i) c->set_output(2 + slots + i, c->Vector(c->UnknownDim()));
      c->set_output(5 + slots, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Copies the rows of shards first_shard .. first_shard + num_shards - 1; num_shards -1 means all from first_shard on.

Each shard is of one moment. Its rows come in the order of the shard's index.

slot_names: which optimizer slots to copy.
frequency, last_step, last_time: of length 0 where the table does not keep them.
shards: how many shards the table has.
)doc");

REGISTER_OP("TfctrEvExportCounters")
    .Input("handle: resource")
    .Output("keys: int64")
    .Output("counts: int64")
    .Output("last_step: int64")
    .Output("last_time: int64")
    .Output("bloom: uint8")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(AllScalars(c));
      for (int i = 0; i < 5; ++i) c->set_output(i, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Copies what admission has counted: keys without a row and their counts, or the cells of a Bloom filter.

last_step, last_time: of length 0 where the counters do not keep them.
)doc");

REGISTER_OP("TfctrEvImport")
    .Input("handle: resource")
    .Input("step: int64")
    .Input("keys: int64")
    .Input("values: float")
    .Input("slots: K * float")
    .Input("frequency: int64")
    .Input("last_step: int64")
    .Input("last_time: int64")
    .Attr("K: int >= 0")
    .Attr("slot_names: list(string) >= 0")
    .Attr("replace: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &unused));
      for (int i = 3; i < c->num_inputs() - 3; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 2, &unused));
      for (int i = c->num_inputs() - 3; i < c->num_inputs(); ++i) {
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Writes rows for `keys`, admitted or not: existing rows are overwritten, others inserted. Counters of these keys go.

Shapes are checked, and NaN or Inf refused by key, before any row changes.

step: taken as last step of rows where last_step is not given.
values: [n, dim]. slots: [n, width] each, of the slots `slot_names`; slots that are not given get their initial values.
frequency, last_step, last_time: [n], or of length 0: frequency max(1, min_count), last step and time are now.
replace: the table holds these rows only afterwards; a lookup meanwhile sees the old or the new ones.
)doc");

REGISTER_OP("TfctrEvImportCounters")
    .Input("handle: resource")
    .Input("step: int64")
    .Input("keys: int64")
    .Input("counts: int64")
    .Input("last_step: int64")
    .Input("last_time: int64")
    .Input("bloom: uint8")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      for (int i = 2; i < c->num_inputs(); ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Sets counts of keys that have no row, or the cells of a Bloom filter of the same geometry. Keys with a row are skipped.

Counts go into a Bloom filter too: they are added to its cells.

last_step, last_time: [n], or of length 0 for now.
)doc");

REGISTER_OP("TfctrEvReplace")
    .Input("handle: resource")
    .Input("source: resource")
    .SetIsStateful()
    .SetShapeFn(AllScalars)
    .Doc(R"doc(
Gives `handle` the whole contents of `source`, a table of the same rows, and `source` an empty one: how rows that were
imported piece by piece take a table's place at once.
)doc");

}  // namespace
}  // namespace tfctr
