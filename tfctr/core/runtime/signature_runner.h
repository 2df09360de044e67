// One signature on one loaded model: packed request in, output tensors out. No Python, no GIL.
//
// Thread-safety: Run may be called from any number of threads.
#ifndef TFCTR_CORE_RUNTIME_SIGNATURE_RUNNER_H_
#define TFCTR_CORE_RUNTIME_SIGNATURE_RUNNER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tfctr/core/runtime/executor.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/signature_plan.h"

namespace tfctr {

// Inputs that the graph has a default for may be left out of requests that are not packed.
void MarkOptional(const Model& model, SignaturePlan* plan);

// Whether a failed run says that the request's own values are wrong.
bool IsAboutInput(const absl::Status& status);

// What traced runs of one form of a signature need.
struct TracedForm {
  int64_t id = 0;                    // of the process
  std::unique_ptr<Program> program;  // nullptr: it can't be made
  std::string graphs;                // RunMetadata with the graphs that run, without large values; "": not known
  std::string error;                 // why there is no program, or no graph
};

class SignatureRunner {
 public:
  // `plan` must outlive the runner. Internal when the graph lacks a tensor of it.
  static absl::StatusOr<std::unique_ptr<SignatureRunner>> Make(std::shared_ptr<const Model> model,
                                                               const SignaturePlan& plan);
  SignatureRunner(const SignatureRunner&) = delete;
  SignatureRunner& operator=(const SignatureRunner&) = delete;

  // TensorFlow's status as it is; FailureText makes a message of it. `metadata`: gets what `trace` asks for.
  absl::Status Run(const PackedRequest& request, std::vector<tensorflow::Tensor>* outputs,
                   tensorflow::RunMetadata* metadata = nullptr, Trace trace = Trace::kNone);

  // Makes what traced runs of requests like this one need; takes as long as loading the signature did, and runs of this
  // model meanwhile wait. `run`: runs the request once to learn the graph. Not for several threads at once.
  void PrepareTrace(const PackedRequest& request, bool run);
  // What PrepareTrace made for requests like this one; nullptr: nothing yet.
  std::shared_ptr<const TracedForm> Traced(const PackedRequest& request) const;
  // As Run, with op times of this run alone.
  absl::Status RunTraced(const TracedForm& form, const PackedRequest& request, std::vector<tensorflow::Tensor>* outputs,
                         tensorflow::RunMetadata* metadata) const;
  // Gives back what PrepareTrace made, once no run uses it.
  void DropTraced();

  // On one line: model, signature, what TensorFlow says, and which inputs have how many rows where they differ.
  std::string FailureText(const absl::Status& status, const PackedRequest& request) const;

 private:
  SignatureRunner(std::shared_ptr<const Model> model, const SignaturePlan& plan)
      : model_(std::move(model)), plan_(plan) {}
  const Form& FormOf(bool split) const { return split ? *plan_.split : plan_.plain; }
  absl::StatusOr<std::unique_ptr<Program>> MakeProgram(bool split, const std::vector<int>& absent, Trace trace) const;
  absl::StatusOr<std::string> LearnGraphs(const PackedRequest& request) const;
  absl::StatusOr<std::vector<tensorflow::Tensor>> Feeds(const PackedRequest& request) const;
  // The program for requests like this one (form, inputs left out); those that trace are made at first use.
  absl::StatusOr<const Program*> ProgramFor(const PackedRequest& request, Trace trace);

  const std::shared_ptr<const Model> model_;
  const SignaturePlan& plan_;
  std::unique_ptr<Program> program_;
  std::unique_ptr<Program> split_program_;
  mutable std::mutex traced_mutex_;
  std::map<std::pair<bool, std::vector<int>>, std::shared_ptr<const TracedForm>> traced_;  // by split, absent
  std::mutex others_mutex_;
  std::map<std::tuple<bool, Trace, std::vector<int>>, std::unique_ptr<Program>> others_;  // by split, trace, absent
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_SIGNATURE_RUNNER_H_
