// What NAME/config says about a saved table, and the saves that a delta builds upon.
//
// Thread-safety: plain functions; a reader belongs to the calling thread. Cost: one index of a bundle is opened for
// each save of a chain.
#ifndef TFCTR_CORE_KERNELS_EV_BUNDLE_CHAIN_H_
#define TFCTR_CORE_KERNELS_EV_BUNDLE_CHAIN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace tfctr {

struct SavedTable {
  int64_t rows = 0;
  int64_t step = 0;
  bool left_out_slots = false;
  bool left_out_any = false;
  std::string key_dtype;
  std::string save;  // of a save that deltas may follow
  bool delta = false;
  std::string previous_name;  // of a delta
  std::string previous_save;
};

// One save of a table: the whole one, or a delta.
struct ChainLink {
  std::string prefix;
  tensorflow::BundleReader* reader = nullptr;
  std::unique_ptr<tensorflow::BundleReader> owned;  // what `reader` is, except of the save that was asked for
  SavedTable table;
};

// The saves of table `name` up to the one of `reader`, the whole one first. `variable` begins messages: "embedding
// variable 'x'". NotFound, FailedPrecondition or DataLoss, naming both checkpoints, where one is missing, is another
// save than the delta was made on, or is damaged.
absl::Status OpenChain(tensorflow::BundleReader* reader, const std::string& prefix, const std::string& variable,
                       const std::string& name, std::vector<ChainLink>* chain);

// How messages about a checkpoint begin: "embedding variable 'x' can't be restored from checkpoint 'y': ".
std::string CannotRestore(const std::string& variable, const std::string& prefix);

}  // namespace tfctr

#endif  // TFCTR_CORE_KERNELS_EV_BUNDLE_CHAIN_H_
