// One signature of a loaded model, from a Python dict to a Python dict: pack, run (GIL released), give the outputs as
// arrays. Where the plan has a split form, each request runs the form that suits its rows (user_rows.h).
//
// Thread-safety: Predict may be called from any number of threads; each call owns its request.
#ifndef TFCTR_CORE_RUNTIME_PREDICTOR_H_
#define TFCTR_CORE_RUNTIME_PREDICTOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pybind11/pybind11.h"
#include "tfctr/core/runtime/executor.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/signature_plan.h"
#include "tfctr/core/runtime/signature_runner.h"

namespace tfctr {

// Raises the class `error_class` of tfctr.errors.
[[noreturn]] void RaiseError(const char* error_class, const std::string& message);

// As Pack; what does not fit is raised as tfctr.errors.InputError.
PackedRequest PackOrRaise(const SignaturePlan& plan, const pybind11::dict& request);

class Predictor {
 public:
  // `description`: see SignaturePlan. Raises InternalError when the graph lacks a tensor of it.
  Predictor(std::shared_ptr<const Model> model, const pybind11::dict& description);
  ~Predictor();

  // Raises tfctr.errors.InputError for a request that does not fit, or that the model itself refuses as invalid.
  pybind11::dict Predict(const pybind11::dict& request);
  // The same, with op times: (outputs, serialised RunMetadata). graphs: with the graphs of the devices, too.
  pybind11::tuple PredictTraced(const pybind11::dict& request, bool graphs);

  PackedRequest PackRequest(const pybind11::dict& request) const { return PackOrRaise(plan_, request); }
  pybind11::dict RunPacked(const PackedRequest& request);

  // Requests that reached the graph so far: {"plain", "split", "repeated"}; "repeated" ones are among the others.
  pybind11::dict Requests() const;

 private:
  pybind11::dict Run(const PackedRequest& request, tensorflow::RunMetadata* metadata = nullptr,
                     Trace trace = Trace::kNone);

  SignaturePlan plan_;  // not changed after construction
  std::vector<pybind11::str> output_names_;
  std::unique_ptr<SignatureRunner> runner_;
  std::atomic<int64_t> plain_runs_{0}, split_runs_{0}, repeated_{0};
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_PREDICTOR_H_
