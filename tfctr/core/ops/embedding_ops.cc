// Ops over embedding variables: tables from int64 key to one row of `dim` floats that grow while a model trains.
//
// TfctrEvHandle makes the table in its kernel (all settings are in its `config`), so that a SavedModel can be restored
// before any init op ran. Lookups and updates of many tables go through one op each: TfctrEvLookup, TfctrEvApply. The
// rest is administration: sizes, counts, erase, evict, reserve, the clock. What the words mean (admission, eviction,
// frequency, touch) is in docs/embedding_variable.md; saving and restoring is in embedding_checkpoint_ops.cc.
//
// Every op is stateful: a table changes between two runs of the same graph.
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

// Attributes of the lookups of one op; the kernels check that each list has N entries (ev_lookup_spec.h).
struct LookupAttrs {
  std::vector<int32_t> dims;
  std::vector<std::string> combiners;
  std::vector<int32_t> splits_index;
  int tables = 0;
  int splits = 0;
  int weights = 0;
};

absl::Status ReadLookupAttrs(InferenceContext* c, LookupAttrs* attrs) {
  TF_RETURN_IF_ERROR(c->GetAttr("N", &attrs->tables));
  TF_RETURN_IF_ERROR(c->GetAttr("S", &attrs->splits));
  TF_RETURN_IF_ERROR(c->GetAttr("W", &attrs->weights));
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &attrs->dims));
  TF_RETURN_IF_ERROR(c->GetAttr("combiners", &attrs->combiners));
  TF_RETURN_IF_ERROR(c->GetAttr("splits_index", &attrs->splits_index));
  const size_t n = static_cast<size_t>(attrs->tables);
  if (attrs->dims.size() != n || attrs->combiners.size() != n || attrs->splits_index.size() != n) {
    return absl::InvalidArgumentError("dims, combiners and splits_index must have one entry for each of the " +
                                      std::to_string(n) + " lookups");
  }
  for (size_t i = 0; i < n; ++i) {
    const bool pooled = !attrs->combiners[i].empty();
    if (pooled && (attrs->splits_index[i] < 0 || attrs->splits_index[i] >= attrs->splits)) {
      return absl::InvalidArgumentError("lookup " + std::to_string(i) + " is combined, so splits_index[" +
                                        std::to_string(i) + "] must be in [0, " + std::to_string(attrs->splits) +
                                        "), got " + std::to_string(attrs->splits_index[i]));
    }
  }
  return absl::OkStatus();
}

// Inputs `begin` to `begin + count` have this rank.
absl::Status CheckRanks(InferenceContext* c, int begin, int count, int rank) {
  ShapeHandle unused;
  for (int i = begin; i < begin + count; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), rank, &unused));
  return absl::OkStatus();
}

absl::Status LookupShape(InferenceContext* c) {
  LookupAttrs attrs;
  TF_RETURN_IF_ERROR(ReadLookupAttrs(c, &attrs));
  const int first_splits = 2 * attrs.tables;
  TF_RETURN_IF_ERROR(CheckRanks(c, 0, attrs.tables, 0));
  TF_RETURN_IF_ERROR(CheckRanks(c, first_splits, attrs.splits, 1));
  TF_RETURN_IF_ERROR(CheckRanks(c, first_splits + attrs.splits, attrs.weights, 1));
  TF_RETURN_IF_ERROR(CheckRanks(c, first_splits + attrs.splits + attrs.weights, 2, 0));
  for (int i = 0; i < attrs.tables; ++i) {
    const DimensionHandle dim = c->MakeDim(attrs.dims[i]);
    if (attrs.combiners[i].empty()) {
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->Concatenate(c->input(attrs.tables + i), c->Vector(dim), &rows));
      c->set_output(i, rows);
    } else {
      DimensionHandle batch;
      TF_RETURN_IF_ERROR(c->Subtract(c->Dim(c->input(first_splits + attrs.splits_index[i]), 0), 1, &batch));
      c->set_output(i, c->Matrix(batch, dim));
    }
  }
  return absl::OkStatus();
}

REGISTER_OP("TfctrEvHandle")
    .Output("handle: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .Attr("config: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Handle of an embedding variable; makes its table if `shared_name` has none yet.

config: JSON (tfctr/core/embedding/config.h). A table of that name with another config is refused.
)doc");

REGISTER_OP("TfctrEvLookup")
    .Input("handles: N * resource")
    .Input("keys: N * int64")
    .Input("row_splits: S * int64")
    .Input("weights: W * float")
    .Input("step: int64")
    .Input("training: bool")
    .Output("rows: N * float")
    .Attr("N: int >= 1")
    .Attr("S: int >= 0")
    .Attr("W: int >= 0")
    .Attr("dims: list(int)")
    .Attr("combiners: list(string)")
    .Attr("splits_index: list(int)")
    .Attr("weights_index: list(int)")
    .Attr("max_norms: list(float)")
    .SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc(R"doc(
Rows of N lookups, each in a table of its own or in a shared one.

handles: TfctrEvHandle of each lookup's table.
keys: any shape where the lookup has no combiner, else the flat values of a ragged batch.
row_splits: of ragged batches: row r is keys[splits[r]:splits[r + 1]]. Lookups may share one.
weights: of weighted lookups, one per key.
step: of the model, written where the table keeps a last step (rows that are made here).
training: counts every key, makes rows for keys that are admitted. Else the tables stay as they are.
rows: keys.shape + [dim], or [rows, dim] where a combiner is set. Keys without a row have the table's default value.
dims: of each table.
combiners: "" (one row per key), "sum", "mean" or "sqrtn".
splits_index: which of row_splits, -1 where there is no combiner.
weights_index: which of weights, or -1.
max_norms: rows with a larger L2 norm are scaled down to it before they are combined; negative: no limit.
)doc");

REGISTER_OP("TfctrEvLookupGrad")
    .Input("handles: N * resource")
    .Input("keys: N * int64")
    .Input("row_splits: S * int64")
    .Input("weights: W * float")
    .Input("grads: N * float")
    .Output("unique_keys: N * int64")
    .Output("sums: N * float")
    .Output("weight_grads: W * float")
    .Attr("N: int >= 1")
    .Attr("S: int >= 0")
    .Attr("W: int >= 0")
    .Attr("dims: list(int)")
    .Attr("combiners: list(string)")
    .Attr("splits_index: list(int)")
    .Attr("weights_index: list(int)")
    .Attr("max_norms: list(float)")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      LookupAttrs attrs;
      TF_RETURN_IF_ERROR(ReadLookupAttrs(c, &attrs));
      for (int i = 0; i < attrs.tables; ++i) {
        const DimensionHandle count = c->UnknownDim();
        c->set_output(i, c->Vector(count));
        c->set_output(attrs.tables + i, c->Matrix(count, c->MakeDim(attrs.dims[i])));
      }
      for (int w = 0; w < attrs.weights; ++w) {
        c->set_output(2 * attrs.tables + w, c->input(2 * attrs.tables + attrs.splits + w));
      }
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gradient of TfctrEvLookup: for every distinct key of a lookup the sum over its occurrences, and that of the weights.

grads: of the lookup's outputs.
unique_keys: in order of first occurrence.
sums: [unique keys, dim].
)doc");

REGISTER_OP("TfctrEvApply")
    .Input("handles: N * resource")
    .Input("keys: N * int64")
    .Input("grads: N * float")
    .Input("learning_rates: N * float")
    .Input("step: int64")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int tables = 0;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &tables));
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, tables, 0));
      TF_RETURN_IF_ERROR(CheckRanks(c, tables, tables, 1));
      TF_RETURN_IF_ERROR(CheckRanks(c, 2 * tables, tables, 2));
      return CheckRanks(c, 3 * tables, tables + 1, 0);
    })
    .Doc(R"doc(
One step of each table's optimizer: gradients of equal keys are summed first, keys without a row are left out.

A table with a NaN or an infinity in its gradient is refused before any row of it changes; the error names table and key.

keys: [n] each, in any order, with repetitions.
grads: [n, dim] each.
learning_rates: a scalar each.
step: of the model: for optimizers whose formula needs it, for rows that keep a last step, and for `evict_every_steps`.
)doc");

REGISTER_OP("TfctrEvRowSplits")
    .Input("indices: int64")
    .Input("dense_shape: int64")
    .Output("row_splits: int64")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, 1, 2));
      TF_RETURN_IF_ERROR(CheckRanks(c, 1, 1, 1));
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &shape));
      DimensionHandle splits = c->UnknownDim();
      if (c->RankKnown(shape) && c->Rank(shape) > 0) TF_RETURN_IF_ERROR(c->Add(c->Dim(shape, 0), 1, &splits));
      c->set_output(0, c->Vector(splits));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Row splits of a SparseTensor's values. Rows that are not in order are refused by number, as are rows outside the shape.

indices: [values, rank], rank >= 1.
dense_shape: [rank].
row_splits: [dense_shape[0] + 1].
)doc");

REGISTER_OP("TfctrEvSize")
    .Input("handle: resource")
    .Output("rows: int64")
    .Output("counters: int64")
    .Output("bytes: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, 1, 0));
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Rows of the table, keys that are counted but not admitted, and the bytes of memory that all of it takes.
)doc");

absl::Status LikeKeys(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, 0, 1, 0));
  c->set_output(0, c->input(1));
  return absl::OkStatus();
}

REGISTER_OP("TfctrEvFrequency")
    .Input("handle: resource")
    .Input("keys: int64")
    .Output("frequency: int64")
    .SetIsStateful()
    .SetShapeFn(LikeKeys)
    .Doc(R"doc(
How often each key was looked up in training, admitted or not; 0 for a key that was never seen.
)doc");

REGISTER_OP("TfctrEvContains")
    .Input("handle: resource")
    .Input("keys: int64")
    .Output("contains: bool")
    .SetIsStateful()
    .SetShapeFn(LikeKeys)
    .Doc(R"doc(
Whether each key has a row.
)doc");

REGISTER_OP("TfctrEvErase")
    .Input("handle: resource")
    .Input("keys: int64")
    .Output("erased: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, 1, 0));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Removes the rows of these keys, optimizer slots and counts included; returns how many there were.
)doc");

REGISTER_OP("TfctrEvEvict")
    .Input("handle: resource")
    .Input("step: int64")
    .Input("dry_run: bool")
    .Output("rows: int64")
    .Output("counters: int64")
    .Output("bytes: int64")
    .Output("rule_rows: int64")
    .Output("rule_counters: int64")
    .Output("rule_bytes: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, 3, 0));
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Scalar());
      for (int i = 3; i < 6; ++i) c->set_output(i, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Runs the eviction rules of the table's config at `step` and the table's clock.

dry_run: count only, remove nothing.
rows, counters, bytes: what was removed (or would be).
rule_rows, rule_counters, rule_bytes: the same by rule, in the config's order.
)doc");

REGISTER_OP("TfctrEvReserve")
    .Input("handle: resource")
    .Input("rows: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 0, 2, 0); })
    .Doc(R"doc(
Makes room for this many rows in total, so that the table does not grow until it holds more.
)doc");

REGISTER_OP("TfctrEvSetClock")
    .Input("handle: resource")
    .Input("time_ms: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 0, 2, 0); })
    .Doc(R"doc(
Sets the time that the table goes by, in milliseconds since 1970; -1 gives it the system's clock back.
)doc");

REGISTER_OP("TfctrEvSetFrozen")
    .Input("handle: resource")
    .Input("frozen: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 0, 2, 0); })
    .Doc(R"doc(
frozen: from now on training lookups of the table neither insert nor count, and updates are refused; false undoes it.
)doc");

}  // namespace
}  // namespace tfctr
