// One compiled form of a tower: for a fixed number of rows, or for any. A variant has a pool of contexts; a context is
// a compiled model and its one infer request, used by one call at a time.
//
// Why not one compiled model with several requests: runs of one stream are serialised by a lock of the plugin, and
// with several streams a call on the caller's thread gets a stream by chance (and half the speed when it is alone).
//
// Thread-safety: Acquire and release from any thread; no lock is held while a context is made or runs.
#ifndef TFCTR_CORE_OPENVINO_VARIANT_H_
#define TFCTR_CORE_OPENVINO_VARIANT_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "openvino/openvino.hpp"
#include "tfctr/core/engines/engine.h"
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

class Variant {
 public:
  using Maker = std::function<Result<std::unique_ptr<Context>>()>;

  // rows: 0 for the dynamic one. max: contexts at most.
  Variant(int64_t rows, int max, Maker maker) : rows_(rows), max_(max), maker_(std::move(maker)) {}

  int64_t rows() const { return rows_; }

  // A context that this caller has alone: a free one, else a new one, else the next that is given back.
  Result<std::unique_ptr<Context>> Acquire();
  void Release(std::unique_ptr<Context> context);

  // How many contexts were made.
  int made() const;

  std::atomic<int64_t> runs{0};
  std::atomic<int64_t> padded_runs{0};

 private:
  const int64_t rows_;
  const int max_;
  const Maker maker_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::vector<std::unique_ptr<Context>> free_;
  int made_ = 0;
};

// A context for the length of a scope.
class Lease {
 public:
  explicit Lease(Variant* variant) : variant_(variant) {
    Result<std::unique_ptr<Context>> context = variant->Acquire();
    status_ = context.status();
    if (status_.ok()) context_ = context.Take();
  }
  ~Lease() {
    if (context_) variant_->Release(std::move(context_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  const Status& status() const { return status_; }
  Context& context() { return *context_; }

 private:
  Variant* const variant_;
  Status status_;
  std::unique_ptr<Context> context_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_OPENVINO_VARIANT_H_
