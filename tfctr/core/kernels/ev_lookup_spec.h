// The static part of the lookups of one TfctrEvLookup or TfctrEvLookupGrad, and what both check about their inputs.
// Thread-safety: plain values. Cost: read once per kernel; the checks of row_splits read them once.
#ifndef TFCTR_CORE_KERNELS_EV_LOOKUP_SPEC_H_
#define TFCTR_CORE_KERNELS_EV_LOOKUP_SPEC_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/embedding/pooling.h"
#include "tfctr/core/kernels/ev_resource.h"

namespace tfctr {

struct EvLookupSpec {
  Pooling pooling;
  int splits = -1;   // which of row_splits
  int weights = -1;  // which of weights

  bool combined() const { return pooling.combiner != Combiner::kNone; }
};

// From the attributes dims, combiners, splits_index, weights_index and max_norms.
absl::Status ReadLookupSpecs(tensorflow::OpKernelConstruction* context, std::vector<EvLookupSpec>* specs);

// One lookup with its inputs, checked. The pointers are of input tensors.
struct EvLookup {
  const EvLookupSpec* spec = nullptr;
  EvResource* ev = nullptr;
  std::shared_ptr<EmbeddingTable> table;
  const int64_t* keys = nullptr;
  int64_t n = 0;                    // keys
  const int64_t* splits = nullptr;  // combined only
  int64_t rows = 0;                 // of the output, in the sense of the combiner: n where there is none
  const float* weights = nullptr;   // or null
};

// Reads handles, keys, row_splits and weights, which are the first inputs of both ops. `owned` keeps the variables.
// InvalidArgument naming variable, lookup and what does not fit.
absl::Status ReadLookups(tensorflow::OpKernelContext* context, const std::vector<EvLookupSpec>& specs, int splits,
                         std::vector<tensorflow::core::RefCountPtr<EvResource>>* owned, std::vector<EvLookup>* lookups);

}  // namespace tfctr

#endif  // TFCTR_CORE_KERNELS_EV_LOOKUP_SPEC_H_
