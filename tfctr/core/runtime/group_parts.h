// What the parts of ServingGroup share: its pieces, and threads of low priority.
#ifndef TFCTR_CORE_RUNTIME_GROUP_PARTS_H_
#define TFCTR_CORE_RUNTIME_GROUP_PARTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/serving/call.h"

namespace tfctr {

class GroupSignature;

struct RequestPiece : Piece {
  const GroupSignature* signature = nullptr;
  const Call* call = nullptr;  // whose piece it is
  PackedRequest request;
  std::vector<tensorflow::Tensor> outputs;
  int64_t submitted_ns = 0;
  int64_t lookup_ns = 0, dense_ns = 0;
};

inline RequestPiece& AsRequest(Piece* piece) { return *static_cast<RequestPiece*>(piece); }

// Runs `work` on a thread that gets what serving leaves, and waits for it.
void AtLowPriority(const std::function<void()>& work);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_GROUP_PARTS_H_
