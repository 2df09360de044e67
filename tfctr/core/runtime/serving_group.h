// The executors of one version, each with a loaded model of its own, behind one queue: from a packed request to output
// tensors. No Python, no GIL: the deleter of a SignaturePlan, which holds Python objects, takes the GIL itself.
//
// Requests of one signature that go together (request_batch.h) share a run where batching is on; requests with more
// rows than a run may have are cut into pieces and put together again. Where a shared run fails over somebody's data,
// its requests run again one by one.
//
// Thread-safety: all methods may be called from any thread.
#ifndef TFCTR_CORE_RUNTIME_SERVING_GROUP_H_
#define TFCTR_CORE_RUNTIME_SERVING_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfctr/core/runtime/executor.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/request_batch.h"
#include "tfctr/core/runtime/run_traces.h"
#include "tfctr/core/runtime/signature_plan.h"
#include "tfctr/core/runtime/signature_runner.h"
#include "tfctr/core/serving/call.h"
#include "tfctr/core/serving/clock.h"
#include "tfctr/core/serving/dispatcher.h"
#include "tfctr/core/serving/histogram.h"

namespace tfctr {

struct GroupOptions {
  DispatcherOptions dispatch;  // executors: as many as models
  bool batching = false;
  bool metrics = true;
  int64_t max_request_rows = 0;  // 0: any
};

// Nanoseconds of a request; the stages add up to `total`, except lookup and dense, which are inside `run`.
struct Timing {
  int64_t parse = 0, pack = 0, queue = 0, batch = 0, run = 0, split = 0, reply = 0, total = 0;
  int64_t lookup = 0, dense = 0;
  int64_t batch_rows = 0;
  int64_t batch_requests = 0;
  int64_t rows = 0;
  int executor = -1;

  // What is not in another stage (waking up, writing) is the reply's.
  void Close(int64_t total_ns) {
    total = total_ns;
    reply = total - parse - pack - queue - batch - run - split;
  }
};

// One signature on all executors.
class GroupSignature {
 public:
  // `plan`: with MarkOptional done. `max_rows`: rows of one run; 0: as the group's batches.
  static absl::StatusOr<std::unique_ptr<GroupSignature>> Make(const std::vector<std::shared_ptr<const Model>>& models,
                                                              std::shared_ptr<const SignaturePlan> plan,
                                                              std::string name, uint64_t number, bool batchable,
                                                              int64_t max_rows);
  const SignaturePlan& plan() const { return *plan_; }
  const std::string& name() const { return name_; }
  // Whether its requests may share runs and be cut.
  bool batchable() const { return batchable_; }
  // The rows of its requests; there where it is batchable, else where rows can be told.
  const std::optional<BatchPlan>& batch() const { return batch_; }
  int64_t max_rows() const { return max_rows_; }
  SignatureRunner& runner(int executor) const { return *runners_[static_cast<size_t>(executor)]; }
  // InvalidArgument for an output that the signature has not.
  Failure CheckOutputs(const std::vector<std::string>& names) const;
  // The lane of requests with this key.
  uint64_t Lane(const std::string& key) const;

 private:
  GroupSignature() = default;

  std::string name_;
  uint64_t number_ = 0;
  int64_t max_rows_ = 0;
  bool batchable_ = false;
  std::shared_ptr<const SignaturePlan> plan_;
  std::optional<BatchPlan> batch_;
  std::vector<std::unique_ptr<SignatureRunner>> runners_;
};

// What a request gives, or why it gives nothing.
struct Answer {
  Failure failure;
  std::vector<tensorflow::Tensor> outputs;  // in the order of the plan; may be views of a batch's memory
  Timing timing;                            // queue to split
};

class ServingGroup : public Runner {
 public:
  // nullptr, and `error` says why, when an executor can't start.
  static std::unique_ptr<ServingGroup> Make(std::vector<std::shared_ptr<const Model>> models,
                                            const GroupOptions& options, std::string* error);
  ~ServingGroup() override;

  // The group keeps it. Errors: as GroupSignature::Make.
  absl::StatusOr<const GroupSignature*> AddSignature(std::shared_ptr<const SignaturePlan> plan, const std::string& name,
                                                     bool batchable, int64_t max_rows);

  // Runs a request and waits for it.
  Answer Run(const GroupSignature& signature, PackedRequest request, const std::shared_ptr<Call>& call);
  // The same without waiting; see Dispatcher::Submit for when `done` is called.
  void Submit(const GroupSignature& signature, PackedRequest request, const std::shared_ptr<Call>& call,
              std::function<void(Answer)> done);
  // Runs it on this executor, past the queue, on a thread of its own with low priority.
  Answer RunOn(int executor, const GroupSignature& signature, const PackedRequest& request);

  // Runs these as one request there, as a batch would be run, and gives each its own outputs; they must go together.
  Failure RunTogether(int executor, const GroupSignature& signature, const std::vector<PackedRequest>& requests,
                      std::vector<std::vector<tensorflow::Tensor>>* outputs);

  // Counts a request that has ended: its code, its time, and the time of its stages if it was answered.
  void Count(const Timing& timing, FailCode code);

  // Traces the run of every N-th request from now on, and keeps at most `room` of them for Take. `replay`: a request
  // that is to be traced may be run once more, to learn the graph; false where runs change state.
  void StartTraces(int64_t every, int64_t room, bool replay);
  // No more; gives back what was made for them, once it is not used.
  void StopTraces();
  // Makes what traced runs need and is missing: the first request of a form that is due is not traced, but says here
  // what it needs. One executor at a time, while the others take the requests. Returns what could not be made.
  std::vector<std::string> PrepareTraces();
  RunTraces& traces() { return traces_; }

  const GroupMetrics& metrics() const { return metrics_; }
  Dispatcher& dispatcher() const { return *dispatcher_; }
  const std::vector<std::shared_ptr<const Model>>& models() const { return models_; }
  int64_t Now() const { return clock_.Now(); }

  Outcome Run(int executor, const std::vector<Piece*>& pieces) override;

 private:
  ServingGroup() = default;
  // A request whose form no traced run is prepared for.
  struct Wanted {
    const GroupSignature* signature;
    PackedRequest request;
  };
  // The pieces of a request: one, or several where it has more rows than a run may have.
  absl::StatusOr<std::vector<std::unique_ptr<Piece>>> Cut(const GroupSignature& signature, PackedRequest request,
                                                          const Call* call, int64_t submitted_ns) const;
  // Runs one packed request for these pieces, with a record of its ops.
  absl::Status RunRecorded(SignatureRunner* runner, const PackedRequest& request, const std::vector<Piece*>& pieces,
                           std::vector<tensorflow::Tensor>* outputs);
  // The record of a run that is to be traced, with `form` set; nullptr: this one is not.
  std::unique_ptr<RunTrace> BeginTrace(const PackedRequest& request, const std::vector<Piece*>& pieces);
  void EndTrace(std::unique_ptr<RunTrace> trace, const absl::Status& status, const std::vector<Piece*>& pieces);
  // Puts the answer together when the call is done.
  static Answer Collect(const GroupSignature& signature, Call* call, int64_t submitted_ns, Failure failure);

  std::vector<std::shared_ptr<const Model>> models_;
  int64_t max_batch_rows_ = 0;  // 0: no batching
  int64_t max_request_rows_ = 0;
  SteadyClock clock_;
  GroupMetrics metrics_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<GroupSignature>> signatures_;
  RunTraces traces_;
  std::mutex preparing_;  // held while traced forms are made or dropped
  bool replay_ = false;
  std::mutex wanted_mutex_;
  std::vector<Wanted> wanted_;
  std::shared_ptr<Dispatcher> dispatcher_;  // its threads end first
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_SERVING_GROUP_H_
