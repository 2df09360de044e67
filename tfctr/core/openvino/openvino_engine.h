// The provider openvino: a dense tower on the CPU.
//
// What decides numbers is always said explicitly (precision, threads), never left to what the CPU is: OpenVINO would
// take bfloat16 where there is AMX. Runs happen on the caller's thread (and threads - 1 more); TensorFlow's memory is
// bound as it is, inputs and outputs, by name.
//
// Thread-safety: Run from any number of threads; each has a context of its own (see variant.h).
#ifndef TFCTR_CORE_OPENVINO_OPENVINO_ENGINE_H_
#define TFCTR_CORE_OPENVINO_OPENVINO_ENGINE_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "openvino/openvino.hpp"
#include "tfctr/core/engines/engine.h"
#include "tfctr/core/openvino/compiled_blob.h"
#include "tfctr/core/openvino/options.h"
#include "tfctr/core/openvino/variant.h"

namespace tfctr {

class OpenVinoEngine : public Engine {
 public:
  // Compiles every variant (or takes it from its blob) and runs it once.
  static Result<std::shared_ptr<Engine>> Open(const EngineSpec& spec);
  ~OpenVinoEngine() override { variants_.clear(); }  // first: they may be making contexts, by way of this

  Result<std::map<std::string, std::string>> Export() override;
  std::string Describe() override;

 protected:
  Status RunChecked(const EngineCall& call) override;

 private:
  // How a variant came to be.
  struct Made {
    double compile_ms = 0;
    double warm_ms = 0;
    bool from_blob = false;
    std::string note;  // why a blob was not used
  };

  OpenVinoEngine(const EngineSpec& spec, OpenVinoOptions options);
  Status OpenVariants();
  Result<std::unique_ptr<Context>> MakeContext(int64_t rows);
  Status Compile(int64_t rows, Context* context, Made* made);
  Status CheckPrecision(const Context& context) const;
  Status BindPorts(Context* context) const;
  Status Warm(int64_t rows, Context* context) const;
  Status WarmWith(int64_t rows, Context* context) const;
  Result<std::shared_ptr<ov::Model>> Model(int64_t rows);
  ov::AnyMap Properties() const;
  BlobIdentity Identity(int64_t rows) const;
  int64_t UsersOf(int64_t rows) const;
  Variant* VariantOf(int64_t bucket) const;
  Status RunIn(int64_t bucket, int64_t rows, const EngineCall& call);
  Status RunPieces(int64_t whole, int64_t rows, const EngineCall& call);
  Status RunExactly(const EngineCall& call, bool check_shapes, Context* context) const;
  Status RunFilledUp(const EngineCall& call, int64_t rows, int64_t filled, Context* context) const;
  bool RowsComeFirst() const;
  void KeepLayers(const ov::InferRequest& request) const;

  const OpenVinoOptions options_;
  const int rows_open_;
  const int users_open_;
  const bool fills_up_;  // whether any batch can be filled up: no tensor has its rows behind another dimension
  const std::string version_;
  // Whether OpenVINO keeps the times of layers (environment variable TFCTR_ENGINE_LAYERS=1 when the engine is opened),
  // which costs every run some.
  const bool keeps_layers_;
  std::vector<std::unique_ptr<Variant>> variants_;  // by rows, the dynamic one (0) first
  mutable std::mutex mutex_;
  mutable std::string layers_;        // guarded by mutex_; JSON, of the last run
  std::shared_ptr<ov::Model> model_;  // guarded by mutex_; read when first needed
  std::map<int64_t, Made> made_;      // guarded by mutex_; the first context of each variant
};

}  // namespace tfctr

#endif  // TFCTR_CORE_OPENVINO_OPENVINO_ENGINE_H_
