// Engines: what runs a dense tower instead of TensorFlow's nodes. Providers (openvino, those written in Python)
// register here; the op TfctrDenseEngine and the Python face open engines through OpenEngine, which shares them by what
// they are.
//
// Thread-safety: everything here may be called from any thread; no lock is held while an engine is opened or run.
// Knows no TensorFlow and no provider.
#ifndef TFCTR_CORE_ENGINES_ENGINE_H_
#define TFCTR_CORE_ENGINES_ENGINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tfctr/core/export.h"
#include "tfctr/core/storage/blob_file.h"
#include "tfctr/core/storage/dtype.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

// Rows of the batch and rows of users: names of open sizes that mean something.
inline constexpr char kRowsName[] = "N";
inline constexpr char kUsersName[] = "U";
// The input that says whose user row each row has: int64 [N]. Its values are checked, as engines would not.
inline constexpr char kRowToUserName[] = "row_to_user";

// A size: fixed, or open (open >= 0: index into EngineSpec::open_names).
struct EngineDim {
  int64_t size = 0;
  int open = -1;
};

struct EngineTensor {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<EngineDim> dims;
};

struct EngineFile {
  std::string role;
  std::shared_ptr<const BlobFile> blob;
};

struct TFCTR_EXPORT EngineSpec {
  std::string provider;
  std::string precision;
  std::vector<EngineTensor> inputs;
  std::vector<EngineTensor> outputs;
  std::vector<std::string> open_names;  // filled by AddInput and AddOutput
  std::vector<EngineFile> files;
  std::string options;  // JSON, the provider's own; "" is {}
  int threads = 1;      // of one run
  std::string label;    // for messages; engines that differ in it alone are one

  // `dims` as the op writes them: "N,416"; "" is a scalar. kInvalid naming the tensor for anything else, and for an
  // output with an open size that no input has.
  Status AddInput(const std::string& name, DType dtype, std::string_view dims);
  Status AddOutput(const std::string& name, DType dtype, std::string_view dims);

  int OpenIndex(std::string_view name) const;  // -1: no tensor has it
  const EngineFile* File(std::string_view role) const;
  std::string Named() const;                               // "engine 'label' (openvino)": how messages begin
  std::string DimsText(const EngineTensor& tensor) const;  // "[N, 416]"
  std::string Key() const;  // equal for equal engines: everything but the label and where files lie
};

// Memory of one input, in C order. Dimensions are the caller's and live during the call.
struct InputView {
  DType dtype = DType::kInvalid;
  const void* data = nullptr;
  const int64_t* dims = nullptr;
  int rank = 0;
};

// Where outputs go. Called once per output, in order, with its final shape, before anything is written.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  // Memory of output `index`, in C order.
  virtual Result<void*> Allocate(size_t index, const std::vector<int64_t>& dims) = 0;
};

// A call whose inputs were checked: one per run, on the caller's stack.
struct EngineCall {
  const InputView* inputs;
  const std::vector<void*>& outputs;              // as allocated, in the order of the spec
  const std::vector<std::vector<int64_t>>& dims;  // of the outputs
  const std::vector<int64_t>& open_sizes;         // by EngineSpec::open_names
};

class TFCTR_EXPORT Engine {
 public:
  explicit Engine(EngineSpec spec);
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const EngineSpec& spec() const { return spec_; }

  // Runs on the caller's thread. `inputs` in the order of the spec. No rows (N = 0): empty outputs, without the engine.
  // kInvalid naming the input, the engine (by `label`, or the one it was opened with) and what was expected.
  Status Run(const std::vector<InputView>& inputs, OutputSink* outputs, const std::string* label = nullptr);

  // What makes opening faster: role of a file -> its bytes. Empty where there is nothing of the kind.
  virtual Result<std::map<std::string, std::string>> Export() = 0;
  // JSON, for people and metrics: at least "provider", "version", "precision", "threads".
  virtual std::string Describe() = 0;

 protected:
  // At least one row; may run on any number of threads at once.
  virtual Status RunChecked(const EngineCall& call) = 0;

 private:
  Status Bind(const std::vector<InputView>& inputs, std::vector<int64_t>* sizes) const;
  Status CheckUsers(const std::vector<InputView>& inputs, const std::vector<int64_t>& sizes) const;
  const EngineSpec spec_;
  const int rows_;         // open index of kRowsName
  const int users_;        // open index of kUsersName
  const int row_to_user_;  // index of that input; -1: none
};

// Opens an engine of one provider. Its messages need not name the engine.
using EngineOpener = std::function<Result<std::shared_ptr<Engine>>(const EngineSpec&)>;

// Adds or replaces a provider.
TFCTR_EXPORT void RegisterEngineProvider(const std::string& name, EngineOpener opener);
TFCTR_EXPORT std::vector<std::string> EngineProviders();
// Called once, without a lock, for a provider that is not registered; may register it. Its message says why it did not.
using ProviderLoader = std::function<Status(const std::string& name)>;
TFCTR_EXPORT void SetProviderLoader(ProviderLoader loader);

// The engine that is open for an equal spec, or a new one: one thread opens it, others that want the same wait. An
// engine ends with its last user. Failures are not kept: the next call tries again.
TFCTR_EXPORT Result<std::shared_ptr<Engine>> OpenEngine(const EngineSpec& spec);

}  // namespace tfctr

#endif  // TFCTR_CORE_ENGINES_ENGINE_H_
