#include "tfctr/core/kernels/ev_lookup_spec.h"

#include "absl/strings/str_cat.h"
#include "tfctr/core/kernels/store_resource.h"

namespace tfctr {
namespace {

using tensorflow::Tensor;

// "lookup 3, embedding variable 'item'"
std::string Where(const EvResource& ev, size_t i) {
  return absl::StrCat("lookup ", i, " (embedding variable '", ev.name(), "')");
}

absl::Status CheckSplits(const EvLookup& lookup, const Tensor& splits, size_t i) {
  const std::string where = Where(*lookup.ev, i);
  if (splits.dims() != 1 || splits.NumElements() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": row_splits has shape ", splits.shape().DebugString(), ", expected [rows + 1]"));
  }
  const int64_t* at = splits.flat<int64_t>().data();
  const int64_t rows = splits.NumElements() - 1;
  if (at[0] != 0 || at[rows] != lookup.n) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": row_splits goes from ", at[0], " to ", at[rows],
                                                   ", expected 0 to the number of keys, ", lookup.n));
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (at[r + 1] < at[r]) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": row_splits falls from ", at[r], " to ", at[r + 1], " at row ", r));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadLookup(tensorflow::OpKernelContext* context, int tables, int splits, size_t i, EvLookup* lookup) {
  const EvLookupSpec& spec = *lookup->spec;
  const Tensor& keys = context->input(tables + static_cast<int>(i));
  lookup->table = lookup->ev->table();
  lookup->keys = keys.flat<int64_t>().data();
  lookup->n = keys.NumElements();
  lookup->rows = lookup->n;
  if (lookup->ev->config().dim != spec.pooling.dim) {
    return absl::InvalidArgumentError(absl::StrCat(Where(*lookup->ev, i), ": the op was made for rows of ",
                                                   spec.pooling.dim, " floats, the variable has rows of ",
                                                   lookup->ev->config().dim));
  }
  if (!spec.combined()) return absl::OkStatus();
  if (keys.dims() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(Where(*lookup->ev, i), ": keys has shape ",
                                                   keys.shape().DebugString(), ", expected a vector to combine"));
  }
  const Tensor& row_splits = context->input(2 * tables + spec.splits);
  TF_RETURN_IF_ERROR(CheckSplits(*lookup, row_splits, i));
  lookup->splits = row_splits.flat<int64_t>().data();
  lookup->rows = row_splits.NumElements() - 1;
  if (spec.weights < 0) return absl::OkStatus();
  const Tensor& weights = context->input(2 * tables + splits + spec.weights);
  if (weights.dims() != 1 || weights.NumElements() != lookup->n) {
    return absl::InvalidArgumentError(absl::StrCat(Where(*lookup->ev, i), ": weights has shape ",
                                                   weights.shape().DebugString(), ", expected one per key, [",
                                                   lookup->n, "]"));
  }
  lookup->weights = weights.flat<float>().data();
  return absl::OkStatus();
}

absl::Status CheckIndex(const char* what, size_t i, int index, int count) {
  if (index >= -1 && index < count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, "[", i, "] is ", index, ", expected -1 to ", count - 1));
}

}  // namespace

absl::Status ReadLookupSpecs(tensorflow::OpKernelConstruction* context, std::vector<EvLookupSpec>* specs) {
  std::vector<int32_t> dims, splits_index, weights_index;
  std::vector<std::string> combiners;
  std::vector<float> max_norms;
  int tables = 0, splits = 0, weights = 0;
  TF_RETURN_IF_ERROR(context->GetAttr("N", &tables));
  TF_RETURN_IF_ERROR(context->GetAttr("S", &splits));
  TF_RETURN_IF_ERROR(context->GetAttr("W", &weights));
  TF_RETURN_IF_ERROR(context->GetAttr("dims", &dims));
  TF_RETURN_IF_ERROR(context->GetAttr("combiners", &combiners));
  TF_RETURN_IF_ERROR(context->GetAttr("splits_index", &splits_index));
  TF_RETURN_IF_ERROR(context->GetAttr("weights_index", &weights_index));
  TF_RETURN_IF_ERROR(context->GetAttr("max_norms", &max_norms));
  const size_t n = static_cast<size_t>(tables);
  if (dims.size() != n || combiners.size() != n || splits_index.size() != n || weights_index.size() != n ||
      max_norms.size() != n) {
    return absl::InvalidArgumentError(
        absl::StrCat("dims, combiners, splits_index, weights_index and max_norms must have one entry for each of the ",
                     n, " lookups"));
  }
  for (size_t i = 0; i < n; ++i) {
    EvLookupSpec spec;
    const Result<Combiner> combiner = ParseCombiner(combiners[i]);
    if (!combiner.ok()) return ToTensorFlow(combiner.status());
    TF_RETURN_IF_ERROR(CheckIndex("splits_index", i, splits_index[i], splits));
    TF_RETURN_IF_ERROR(CheckIndex("weights_index", i, weights_index[i], weights));
    spec.pooling = {combiner.value(), dims[i], max_norms[i]};
    spec.splits = splits_index[i];
    spec.weights = weights_index[i];
    if (spec.combined() && spec.splits < 0) {
      return absl::InvalidArgumentError(absl::StrCat("lookup ", i, " is combined but has no row_splits"));
    }
    if (!spec.combined() && spec.weights >= 0) {
      return absl::InvalidArgumentError(absl::StrCat("lookup ", i, " has weights but no combiner"));
    }
    specs->push_back(spec);
  }
  return absl::OkStatus();
}

absl::Status ReadLookups(tensorflow::OpKernelContext* context, const std::vector<EvLookupSpec>& specs, int splits,
                         std::vector<tensorflow::core::RefCountPtr<EvResource>>* owned,
                         std::vector<EvLookup>* lookups) {
  owned->resize(specs.size());
  lookups->resize(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    TF_RETURN_IF_ERROR(GetEv(context, static_cast<int>(i), &(*owned)[i]));
    EvLookup& lookup = (*lookups)[i];
    lookup.spec = &specs[i];
    lookup.ev = (*owned)[i].get();
    TF_RETURN_IF_ERROR(ReadLookup(context, static_cast<int>(specs.size()), splits, i, &lookup));
  }
  return absl::OkStatus();
}

}  // namespace tfctr
