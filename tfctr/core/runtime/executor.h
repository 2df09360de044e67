// Runs a SavedModel without Python: loads it through TensorFlow's C++ loader, and keeps one prepared callable per
// signature.
//
// A run happens on the caller's thread (inter-op -1); kernels may use the model's own intra-op pool, whose size is
// explicit. No Python here: callers release the GIL around Load and Run.
//
// Thread-safety: Model is immutable after Load; Program::Run may be called from any number of threads at once.
#ifndef TFCTR_CORE_RUNTIME_EXECUTOR_H_
#define TFCTR_CORE_RUNTIME_EXECUTOR_H_

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/threadpool_options.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"
#include "tfctr/core/runtime/devices.h"
#include "tfctr/core/runtime/engine_choice.h"

namespace tfctr {

// What a run leaves in its RunMetadata.
enum class Trace {
  kNone,
  kTimes,      // op times; takes the process's one profiler of GPUs meanwhile
  kGraphs,     // those and the graphs of the devices, which costs a copy of them for every run
  kHostTimes,  // op times as the host sees them, of this run alone, whatever else is recorded
  kGraphOnly,
};

struct ModelOptions {
  std::string path;                // folder with saved_model.pb
  std::vector<std::string> tags;   // exactly the MetaGraph's
  int intra_op_threads = 1;        // >= 1
  tensorflow::ConfigProto config;  // merged over ours
  DeviceMap devices;               // where nodes of a device go instead
  EngineChoice engine;             // who runs the dense towers
  int load_nice = 0;               // above 0: loading happens on a thread of this niceness; the model's pools keep the
                                   // caller's
};

class Model {
 public:
  // Reads the model, restores its variables and runs its init op.
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const ModelOptions& options);

  tensorflow::Session* session() const { return session_.get(); }
  const tensorflow::protobuf::Map<std::string, tensorflow::SignatureDef>& signatures() const { return signatures_; }
  // Whether a graph tensor ("x:0") has a value of its own when it is not fed (PlaceholderWithDefault).
  bool HasDefault(const std::string& tensor) const { return defaults_.count(tensor) > 0; }
  const tensorflow::thread::ThreadPoolOptions& pools() const { return pools_; }
  // Full names of the session's devices, and what the graph asks for (after the rewriting).
  const std::vector<std::string>& session_devices() const { return session_devices_; }
  const std::vector<DeviceUse>& device_uses() const { return device_uses_; }
  // The dense towers that engines run (after the choice of the provider).
  const std::vector<EngineUse>& engines() const { return engines_; }
  // Lets the threads of the intra-op pool (none with intra_op_threads 1) run on these CPUs only. InvalidArgument where
  // they may not.
  absl::Status Pin(const std::vector<int>& cpus) const;
  // Runs a node for its effect, fed with these tensors, on the caller's thread.
  absl::Status RunNode(const std::string& node,
                       const std::vector<std::pair<std::string, tensorflow::Tensor>>& feeds) const;

 private:
  Model() = default;
  absl::Status LoadSession(const ModelOptions& options);

  std::unique_ptr<tensorflow::thread::ThreadPoolInterface> intra_op_;  // outlives the session
  int pool_threads_ = 0;                                               // of its own
  tensorflow::thread::ThreadPoolOptions pools_;
  std::unique_ptr<tensorflow::Session> session_;
  tensorflow::protobuf::Map<std::string, tensorflow::SignatureDef> signatures_;
  std::unordered_set<std::string> defaults_;
  std::vector<std::string> session_devices_;
  std::vector<DeviceUse> device_uses_;
  std::vector<EngineUse> engines_;
};

// One prepared set of feeds and fetches of a model.
class Program {
 public:
  // `feeds` and `fetches` are graph tensors ("x:0"). The same tensor may be fetched twice, and a fed one may be
  // fetched.
  static absl::StatusOr<std::unique_ptr<Program>> Make(std::shared_ptr<const Model> model,
                                                       const std::vector<std::string>& feeds,
                                                       const std::vector<std::string>& fetches, Trace trace);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  absl::Status Run(const std::vector<tensorflow::Tensor>& feeds, std::vector<tensorflow::Tensor>* outputs,
                   tensorflow::RunMetadata* metadata = nullptr) const;

 private:
  // Where output i comes from: fetch `index`, or the feed itself.
  struct From {
    bool fed;
    size_t index;
  };

  Program(std::shared_ptr<const Model> model, int64_t handle, std::vector<From> from)
      : model_(std::move(model)), handle_(handle), from_(std::move(from)) {}

  const std::shared_ptr<const Model> model_;
  const int64_t handle_;
  const std::vector<From> from_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_EXECUTOR_H_
