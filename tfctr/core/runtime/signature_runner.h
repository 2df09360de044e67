// One signature on one loaded model: packed request in, output tensors out. No Python, no GIL.
//
// Thread-safety: Run may be called from any number of threads.
#ifndef TFCTR_CORE_RUNTIME_SIGNATURE_RUNNER_H_
#define TFCTR_CORE_RUNTIME_SIGNATURE_RUNNER_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
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

  // On one line: model, signature, what TensorFlow says, and which inputs have how many rows where they differ.
  std::string FailureText(const absl::Status& status, const PackedRequest& request) const;

 private:
  SignatureRunner(std::shared_ptr<const Model> model, const SignaturePlan& plan)
      : model_(std::move(model)), plan_(plan) {}
  const Form& FormOf(bool split) const { return split ? *plan_.split : plan_.plain; }
  absl::StatusOr<std::unique_ptr<Program>> MakeProgram(bool split, const std::vector<int>& absent, Trace trace) const;
  absl::StatusOr<std::vector<tensorflow::Tensor>> Feeds(const PackedRequest& request) const;
  // The program for requests like this one (form, inputs left out); those that trace are made at first use.
  absl::StatusOr<const Program*> ProgramFor(const PackedRequest& request, Trace trace);

  const std::shared_ptr<const Model> model_;
  const SignaturePlan& plan_;
  std::unique_ptr<Program> program_;
  std::unique_ptr<Program> split_program_;
  std::mutex others_mutex_;
  std::map<std::tuple<bool, Trace, std::vector<int>>, std::unique_ptr<Program>> others_;  // by split, trace, absent
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_SIGNATURE_RUNNER_H_
