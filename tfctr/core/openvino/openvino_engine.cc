#include "tfctr/core/openvino/openvino_engine.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "tfctr/core/engines/cpu.h"
#include "tfctr/core/storage/json.h"

namespace tfctr {
namespace {

constexpr int64_t kDynamic = 0;

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Whether this process is a child of one that had used OpenVINO: the threads of its pools are not here, and a
// compilation would wait for them for ever. Runs of what is compiled need none.
std::atomic<bool> forked{false};

// One per process, never destroyed: its plugin's threads may outlive static destruction.
ov::Core& Core() {
  static ov::Core* const core = [] {
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    return new ov::Core();
  }();
  return *core;
}

ov::element::Type ElementType(const std::string& precision) {
  return precision == "bf16" ? ov::element::bf16 : ov::element::f32;
}

bool LayersWanted() {
  const char* wanted = std::getenv("TFCTR_ENGINE_LAYERS");
  return wanted != nullptr && std::string_view(wanted) == "1";
}

std::string RoleOf(int64_t rows) { return "blob:" + (rows == kDynamic ? "dynamic" : std::to_string(rows)); }

}  // namespace

OpenVinoEngine::OpenVinoEngine(const EngineSpec& spec, OpenVinoOptions options)
    : Engine(spec),
      options_(std::move(options)),
      rows_open_(spec.OpenIndex(kRowsName)),
      users_open_(spec.OpenIndex(kUsersName)),
      fills_up_(RowsComeFirst()),
      version_(ov::get_openvino_version().buildNumber),
      keeps_layers_(LayersWanted()) {}

Result<std::shared_ptr<Engine>> OpenVinoEngine::Open(const EngineSpec& spec) {
  if (spec.precision != "fp32" && spec.precision != "bf16") {
    return Status::Invalid("precision '" + spec.precision + "': expected fp32 or bf16");
  }
  if (spec.precision == "bf16" && !CpuHasBf16()) {
    return Status::Invalid("precision bf16: this CPU (" + CpuIsa() +
                           ") has no bfloat16 instructions; expected avx512_bf16 or amx_bf16. Use fp32 here");
  }
  if (spec.threads < 1) return Status::Invalid("threads " + std::to_string(spec.threads) + ": expected 1 or more");
  if (spec.File("onnx") == nullptr) return Status::Invalid("it has no file of the role 'onnx'");
  Result<OpenVinoOptions> options = OpenVinoOptions::Parse(spec.options);
  if (!options.ok()) return options.status();
  std::shared_ptr<OpenVinoEngine> engine(new OpenVinoEngine(spec, options.Take()));
  TFCTR_RETURN_IF_ERROR(engine->OpenVariants());
  return std::shared_ptr<Engine>(std::move(engine));
}

Status OpenVinoEngine::OpenVariants() {
  std::vector<int64_t> rows;
  // A tower whose sizes are all fixed has one variant.
  if (options_.dynamic || rows_open_ < 0) rows.push_back(kDynamic);
  if (rows_open_ >= 0) rows.insert(rows.end(), options_.buckets.begin(), options_.buckets.end());
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int most = options_.max_contexts > 0 ? options_.max_contexts : processors / spec().threads;
  most = std::max({most, options_.contexts, 1});
  for (const int64_t one : rows) {
    variants_.push_back(std::make_unique<Variant>(one, most, [this, one] { return MakeContext(one); }));
    for (int k = 0; k < options_.contexts; ++k) TFCTR_RETURN_IF_ERROR(variants_.back()->Make());
  }
  return Status::Ok();
}

int64_t OpenVinoEngine::UsersOf(int64_t rows) const { return rows == kDynamic || users_open_ < 0 ? 0 : options_.users; }

BlobIdentity OpenVinoEngine::Identity(int64_t rows) const {
  return {spec().File("onnx")->blob->fingerprint(),
          version_,
          CpuIsa(),
          spec().precision,
          rows,
          UsersOf(rows),
          spec().threads};
}

ov::AnyMap OpenVinoEngine::Properties() const {
  const bool exact = spec().precision == "fp32";
  return {ov::hint::inference_precision(ElementType(spec().precision)),
          ov::hint::execution_mode(exact ? ov::hint::ExecutionMode::ACCURACY : ov::hint::ExecutionMode::PERFORMANCE),
          ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY), ov::hint::num_requests(1), ov::num_streams(1),
          ov::inference_num_threads(spec().threads),
          // Pinning would bind the caller's thread, which is TensorFlow's or the server's.
          ov::hint::enable_cpu_pinning(false), ov::cache_dir(""), ov::enable_profiling(keeps_layers_)};
}

// The model, with fixed rows unless `rows` is 0. Throws what OpenVINO throws.
Result<std::shared_ptr<ov::Model>> OpenVinoEngine::Model(int64_t rows) {
  std::shared_ptr<ov::Model> model;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (model_ == nullptr) {
      const BlobFile& onnx = *spec().File("onnx")->blob;
      model_ = Core().read_model(std::string(reinterpret_cast<const char*>(onnx.data()), onnx.bytes()), ov::Tensor());
    }
    model = model_->clone();  // constants are shared
  }
  std::map<std::string, ov::PartialShape> shapes;
  for (const EngineTensor& input : spec().inputs) {
    std::vector<ov::Dimension> dims;
    for (const EngineDim& dim : input.dims) {
      if (dim.open < 0) {
        dims.emplace_back(dim.size);
      } else if (rows != kDynamic && dim.open == rows_open_) {
        dims.emplace_back(rows);
      } else if (rows != kDynamic && dim.open == users_open_) {
        dims.emplace_back(options_.users);
      } else {
        dims.emplace_back(ov::Dimension::dynamic());
      }
    }
    const auto parameters = model->inputs();
    const bool there = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const auto& one) { return one.get_names().count(input.name) > 0; });
    if (there) shapes[input.name] = ov::PartialShape(dims);
  }
  model->reshape(shapes);
  return model;
}

Status OpenVinoEngine::Compile(int64_t rows, Context* context, Made* made) {
  if (forked) {
    return Status::Invalid(
        "this process was forked from one that had used OpenVINO, which can't compile here; open "
        "sessions after the fork only");
  }
  if (const EngineFile* file = spec().File(RoleOf(rows))) {
    const std::string_view bytes(reinterpret_cast<const char*>(file->blob->data()), file->blob->bytes());
    const Result<std::string_view> payload = UnwrapBlob(Identity(rows), bytes);
    Status status = payload.status();
    if (payload.ok()) {
      status = Guarded([&] {
        // The constants may stay in the mapped file, which lives as long as the spec.
        const ov::Tensor tensor(ov::element::u8, ov::Shape{payload.value().size()},
                                static_cast<const void*>(payload.value().data()));
        context->compiled = Core().import_model(tensor, "CPU", Properties());
        return BindPorts(context);
      });
    }
    made->from_blob = status.ok();
    if (status.ok()) return status;
    made->note = "'" + file->blob->path() + "' is not used: " + status.message;
  }
  return Guarded([&]() -> Status {
    const Result<std::shared_ptr<ov::Model>> model = Model(rows);
    if (!model.ok()) return model.status();
    context->compiled = Core().compile_model(model.value(), "CPU", Properties());
    return BindPorts(context);
  });
}

Status OpenVinoEngine::CheckPrecision(const Context& context) const {
  const ov::element::Type used = context.compiled.get_property(ov::hint::inference_precision);
  if (used == ElementType(spec().precision)) return Status::Ok();
  return Status::Invalid("precision " + spec().precision + " was asked for, but OpenVINO would compute in " +
                         used.get_type_name());
}

Status OpenVinoEngine::BindPorts(Context* context) const {
  const auto check = [this](const ov::Output<const ov::Node>& port, const EngineTensor& tensor, const char* what) {
    const std::string found = port.get_element_type().get_type_name();
    static const std::map<DType, std::string> kNames = {
        {DType::kFloat32, "f32"}, {DType::kFloat64, "f64"}, {DType::kFloat16, "f16"}, {DType::kBFloat16, "bf16"},
        {DType::kInt32, "i32"},   {DType::kInt64, "i64"},   {DType::kInt16, "i16"},   {DType::kInt8, "i8"},
        {DType::kUInt8, "u8"},    {DType::kUInt16, "u16"},  {DType::kUInt32, "u32"},  {DType::kUInt64, "u64"},
        {DType::kBool, "boolean"}};
    ov::PartialShape wanted = ov::PartialShape::dynamic(static_cast<int64_t>(tensor.dims.size()));
    for (size_t d = 0; d < tensor.dims.size(); ++d) {
      if (tensor.dims[d].open < 0) wanted[d] = tensor.dims[d].size;
    }
    const bool fits = wanted.compatible(port.get_partial_shape());
    if (fits && kNames.at(tensor.dtype) == found) return Status::Ok();
    return Status::Invalid(std::string(what) + " '" + tensor.name + "' is " + found + ' ' +
                           port.get_partial_shape().to_string() + " in the model, expected " + DTypeName(tensor.dtype) +
                           ' ' + spec().DimsText(tensor));
  };
  context->has_input.assign(spec().inputs.size(), false);
  context->inputs.resize(spec().inputs.size());
  size_t bound = 0;
  for (const ov::Output<const ov::Node>& port : context->compiled.inputs()) {
    for (size_t i = 0; i < spec().inputs.size(); ++i) {
      if (port.get_names().count(spec().inputs[i].name) == 0) continue;
      TFCTR_RETURN_IF_ERROR(check(port, spec().inputs[i], "input"));
      context->inputs[i] = port;
      context->has_input[i] = true;
      ++bound;
    }
  }
  if (bound != context->compiled.inputs().size()) {
    return Status::Invalid("the model has " + std::to_string(context->compiled.inputs().size()) + " inputs, of which " +
                           std::to_string(bound) + " have names that are expected");
  }
  for (const EngineTensor& output : spec().outputs) {
    bool found = false;
    for (const ov::Output<const ov::Node>& port : context->compiled.outputs()) {
      if (port.get_names().count(output.name) == 0) continue;
      TFCTR_RETURN_IF_ERROR(check(port, output, "output"));
      context->outputs.push_back(port);
      found = true;
      break;
    }
    if (!found) return Status::Invalid("the model has no output '" + output.name + "'");
  }
  context->request = context->compiled.create_infer_request();
  context->padded_inputs.resize(spec().inputs.size());
  context->padded_outputs.resize(spec().outputs.size());
  return Status::Ok();
}

Result<std::unique_ptr<Context>> OpenVinoEngine::MakeContext(int64_t rows) {
  auto context = std::make_unique<Context>();
  Made made;
  const auto start = std::chrono::steady_clock::now();
  TFCTR_RETURN_IF_ERROR(Compile(rows, context.get(), &made));
  TFCTR_RETURN_IF_ERROR(Guarded([&] { return CheckPrecision(*context); }));
  made.compile_ms = MillisecondsSince(start);
  const auto compiled = std::chrono::steady_clock::now();
  TFCTR_RETURN_IF_ERROR(Warm(rows, context.get()));
  made.warm_ms = MillisecondsSince(compiled);
  std::lock_guard<std::mutex> lock(mutex_);
  made_.emplace(rows, made);
  return context;
}

// The first run of a size compiles kernels; a request should not pay for that.
Status OpenVinoEngine::Warm(int64_t rows, Context* context) const {
  if (rows != kDynamic || rows_open_ < 0) return WarmWith(std::max<int64_t>(rows, 1), context);
  static const std::vector<int64_t> kUsual = {1, 32, 256};
  for (const int64_t one : options_.warm.empty() ? kUsual : options_.warm) {
    TFCTR_RETURN_IF_ERROR(WarmWith(one, context));
  }
  return Status::Ok();
}

// A run over zeros; other open sizes are 1.
Status OpenVinoEngine::WarmWith(int64_t rows, Context* context) const {
  std::vector<int64_t> sizes(spec().open_names.size(), 1);
  if (rows_open_ >= 0) sizes[static_cast<size_t>(rows_open_)] = rows;
  if (users_open_ >= 0) sizes[static_cast<size_t>(users_open_)] = options_.users;
  const auto shaped = [&](const EngineTensor& tensor) {
    std::vector<int64_t> dims;
    for (const EngineDim& dim : tensor.dims) {
      dims.push_back(dim.open < 0 ? dim.size : sizes[static_cast<size_t>(dim.open)]);
    }
    return dims;
  };
  std::vector<InputView> views;
  std::vector<std::vector<int64_t>> input_dims;
  std::vector<std::vector<int64_t>> output_dims;
  std::vector<std::vector<uint8_t>> memory;
  std::vector<void*> outputs;
  const auto zeros = [&memory](const EngineTensor& tensor, const std::vector<int64_t>& dims) -> Result<void*> {
    const Result<uint64_t> bytes = DenseBytes(tensor.dtype, dims);
    if (!bytes.ok()) return bytes.status();
    memory.emplace_back(bytes.value() + 1);
    return static_cast<void*>(memory.back().data());
  };
  for (const EngineTensor& tensor : spec().inputs) {
    input_dims.push_back(shaped(tensor));
    const Result<void*> data = zeros(tensor, input_dims.back());
    if (!data.ok()) return data.status();
    views.push_back({tensor.dtype, data.value(), nullptr, static_cast<int>(tensor.dims.size())});
  }
  for (size_t i = 0; i < views.size(); ++i) views[i].dims = input_dims[i].data();
  for (const EngineTensor& tensor : spec().outputs) {
    output_dims.push_back(shaped(tensor));
    const Result<void*> data = zeros(tensor, output_dims.back());
    if (!data.ok()) return data.status();
    outputs.push_back(data.value());
  }
  return RunExactly({views.data(), outputs, output_dims, sizes}, /*check_shapes=*/true, context);
}

Result<std::map<std::string, std::string>> OpenVinoEngine::Export() {
  std::map<std::string, std::string> blobs;
  for (const auto& variant : variants_) {
    Lease lease(variant.get());
    std::ostringstream payload;
    TFCTR_RETURN_IF_ERROR(Guarded([&] {
      lease.context().compiled.export_model(payload);
      return Status::Ok();
    }));
    blobs[RoleOf(variant->rows())] = WrapBlob(Identity(variant->rows()), payload.str());
  }
  return blobs;
}

std::string OpenVinoEngine::Describe() {
  std::ostringstream text;
  text << "{\"provider\":\"openvino\",\"version\":" << JsonText(version_) << ",\"isa\":" << JsonText(CpuIsa())
       << ",\"precision\":" << JsonText(spec().precision) << ",\"threads\":" << spec().threads << ",\"variants\":[";
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t k = 0; k < variants_.size(); ++k) {
    const Variant& variant = *variants_[k];
    const Made& made = made_[variant.rows()];
    text << (k == 0 ? "" : ",") << "{\"rows\":";
    if (variant.rows() == kDynamic) {
      text << "null";
    } else {
      text << variant.rows();
    }
    const std::string failed = variant.failed();
    const std::string more = failed.empty() ? "" : "no more contexts could be made: " + failed;
    const std::string note = made.note + (made.note.empty() || more.empty() ? "" : "; ") + more;
    text << ",\"compile_ms\":" << made.compile_ms << ",\"warm_ms\":" << made.warm_ms
         << ",\"from_blob\":" << (made.from_blob ? "true" : "false") << ",\"note\":" << JsonText(note)
         << ",\"contexts\":" << variant.made() << ",\"runs\":" << variant.runs.load()
         << ",\"padded_runs\":" << variant.padded_runs.load() << '}';
  }
  text << ']';
  if (!layers_.empty()) text << ",\"layers\":" << layers_;
  text << '}';
  return text.str();
}

}  // namespace tfctr
