// One compiled form of a tower: for a fixed number of rows, or for any. A variant has a pool of contexts; a context is
// a compiled model and its one infer request, used by one call at a time.
//
// Why not one compiled model with several requests: runs of one stream are serialised by a lock of the plugin, and
// with several streams a call on the caller's thread gets a stream by chance (and half the speed when it is alone).
//
// Thread-safety: as ContextPool.
#ifndef TFCTR_CORE_OPENVINO_VARIANT_H_
#define TFCTR_CORE_OPENVINO_VARIANT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "openvino/openvino.hpp"
#include "tfctr/core/engines/engine.h"
#include "tfctr/core/openvino/context_pool.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

// Runs `work`; what it throws becomes a status: kInvalid with the text on one line.
Status Guarded(const std::function<Status()>& work);

struct Context {
  ov::CompiledModel compiled;
  ov::InferRequest request;
  // By the numbers of the spec; an input that the model has no more is empty.
  std::vector<ov::Output<const ov::Node>> inputs;
  std::vector<bool> has_input;
  std::vector<ov::Output<const ov::Node>> outputs;
  // Rows filled up: memory of its own, where rows are the first axis. By the numbers of the spec, made when needed.
  std::vector<ov::Tensor> padded_inputs;
  std::vector<ov::Tensor> padded_outputs;
};

class Variant : public ContextPool<Context> {
 public:
  // rows: 0 for the dynamic one. most: contexts at most.
  Variant(int64_t rows, int most, Maker maker) : ContextPool(most, std::move(maker)), rows_(rows) {}

  int64_t rows() const { return rows_; }

  std::atomic<int64_t> runs{0};
  std::atomic<int64_t> padded_runs{0};

 private:
  const int64_t rows_;
};

// A context for the length of a scope.
class Lease {
 public:
  explicit Lease(Variant* variant) : variant_(variant), context_(variant->Acquire()) {}
  ~Lease() { variant_->Release(std::move(context_)); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Context& context() { return *context_; }

 private:
  Variant* const variant_;
  std::unique_ptr<Context> context_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_OPENVINO_VARIANT_H_
