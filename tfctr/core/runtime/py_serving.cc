#include "tfctr/core/runtime/py_serving.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "pybind11/stl.h"
#include "tfctr/core/runtime/completions.h"
#include "tfctr/core/runtime/json_input.h"
#include "tfctr/core/runtime/json_request.h"
#include "tfctr/core/runtime/packer.h"
#include "tfctr/core/runtime/py_runtime.h"
#include "tfctr/core/runtime/py_serving_report.h"
#include "tfctr/core/runtime/py_traces.h"
#include "tfctr/core/runtime/serve_errors.h"
#include "tfctr/core/runtime/serve_message.h"
#include "tfctr/core/runtime/serving_group.h"
#include "tfctr/core/runtime/tensor_array.h"

namespace tfctr {

namespace py = pybind11;

namespace {

using ModelSpec = std::tuple<std::string, int64_t, std::string>;

// What Python says of one request.
struct PyCall {
  std::shared_ptr<Call> call;
  bool timing = false;
  std::vector<std::string> output_filter;
  ModelSpec reply_model_spec;
  std::vector<std::string> user_inputs;
};

// Held by the Python objects of the group, of its signatures, and by requests that are under way.
struct GroupCore {
  std::unique_ptr<ServingGroup> group;
  std::unique_ptr<Completions> completions = std::make_unique<Completions>();

  ~GroupCore() {
    // What runs must end first, and ending TensorFlow sessions takes a while.
    const py::gil_scoped_release released;
    Stop();
    completions.reset();
    group.reset();
  }

  // Gives up what is inside and ends all threads, once everybody was told. Without the GIL.
  void Stop() {
    if (group != nullptr) {
      group->dispatcher().Close(0);
      group->dispatcher().Stop();
    }
    if (completions != nullptr) completions->Stop();
  }
};

// Touched under the GIL only.
std::vector<std::weak_ptr<GroupCore>>& LiveGroups() {
  static auto* groups = new std::vector<std::weak_ptr<GroupCore>>();
  return *groups;
}

// At the end of the interpreter no thread may run models or wait for the GIL.
void StopAllGroups() {
  std::vector<std::shared_ptr<GroupCore>> alive;
  for (const auto& group : LiveGroups()) {
    if (auto core = group.lock()) alive.push_back(std::move(core));
  }
  for (const auto& core : alive) {
    const py::gil_scoped_release released;
    core->Stop();
  }
}

struct PySignature {
  std::shared_ptr<GroupCore> core;
  const GroupSignature* signature = nullptr;
  std::vector<py::str> output_names;
};

struct PyReply {
  std::string body;
  Timing timing;
};

// One request while it is inside: close waits for it, and however it ends is counted.
class Inside {
 public:
  Inside(const PySignature& self, const PyCall& call)
      : group_(*self.core->group), signature_(*self.signature), call_(call), start_ns_(group_.Now()) {
    if (!group_.dispatcher().Enter()) {
      group_.Count({}, FailCode::kUnavailable);
      RaiseServeFailed({FailCode::kUnavailable, Stage::kNone, "the model is closed, or about to be unloaded"});
    }
  }
  ~Inside() {
    if (!handed_on_) group_.dispatcher().Leave();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  int64_t start_ns() const { return start_ns_; }
  ServingGroup& group() const { return group_; }

  [[noreturn]] void Fail(const Failure& failure) const {
    Timing timing;
    timing.total = group_.Now() - start_ns_;
    group_.Count(timing, failure.code);
    RaiseServeFailed(failure);
  }
  void FailIf(const Failure& failure) const {
    if (!failure.ok()) Fail(failure);
  }
  // Whether the call is fresh, in time, and asks for what there is.
  void Begin(Stage stage) const {
    if (!call_.call->Claim()) {
      Fail({FailCode::kInternal, Stage::kNone, "a Call is for one request, and this one was used"});
    }
    FailIf(call_.call->Check(start_ns_, stage));
    FailIf(signature_.CheckOutputs(call_.output_filter));
  }
  PackedRequest Pack(const py::dict& inputs) const {
    try {
      return tfctr::Pack(signature_.plan(), inputs, call_.user_inputs);
    } catch (const BadRequest& error) {
      Fail({FailCode::kInvalidArgument, Stage::kPack, error.what()});
    }
  }
  // Somebody else calls Leave.
  void HandOn() { handed_on_ = true; }

 private:
  ServingGroup& group_;
  const GroupSignature& signature_;
  const PyCall& call_;
  const int64_t start_ns_;
  bool handed_on_ = false;
};

py::dict OutputsDict(const PySignature& self, std::vector<tensorflow::Tensor> outputs,
                     const std::vector<std::string>& filter) {
  const std::vector<Output>& described = self.signature->plan().plain.outputs;
  py::dict result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!filter.empty() && std::find(filter.begin(), filter.end(), described[i].name) == filter.end()) continue;
    result[self.output_names[i]] = TensorToArray(std::move(outputs[i]), described[i].numpy);
  }
  return result;
}

// parse_ns, pack_ns: what it took so far.
py::tuple RunPacked(const Inside& inside, const PySignature& self, const PyCall& call, PackedRequest request,
                    int64_t parse_ns, int64_t pack_ns) {
  call.call->origin.parse_ns = parse_ns;
  call.call->origin.pack_ns = pack_ns;
  Answer answer;
  {
    const py::gil_scoped_release released;
    answer = inside.group().Run(*self.signature, std::move(request), call.call);
  }
  inside.FailIf(answer.failure);
  inside.FailIf(call.call->Check(inside.group().Now(), Stage::kReply));
  py::dict outputs = OutputsDict(self, std::move(answer.outputs), call.output_filter);
  answer.timing.parse = parse_ns;
  answer.timing.pack = pack_ns;
  answer.timing.Close(inside.group().Now() - inside.start_ns());
  inside.group().Count(answer.timing, FailCode::kOk);
  return py::make_tuple(outputs, answer.timing);
}

py::tuple Predict(const PySignature& self, const py::dict& inputs, const PyCall& call) {
  const Inside inside(self, call);
  inside.Begin(Stage::kPack);
  PackedRequest request = inside.Pack(inputs);
  const int64_t pack_ns = inside.group().Now() - inside.start_ns();
  return RunPacked(inside, self, call, std::move(request), 0, pack_ns);
}

// None, with the call unused, where the request has to go over Python's objects.
py::object PredictJson(const PySignature& self, JsonRequest* json, const PyCall& call) {
  const Inside inside(self, call);
  inside.FailIf(call.call->Check(inside.start_ns(), Stage::kParse));
  absl::StatusOr<PackedRequest> packed;
  int64_t read_ns = 0;
  {
    const py::gil_scoped_release released;
    WireRequest wire;
    if (ReadJson(self.signature->plan(), json, &wire)) {
      read_ns = inside.group().Now() - inside.start_ns();
      packed = PackWire(self.signature->plan(), &wire, call.user_inputs);
    }
  }
  if (!packed.ok()) return py::none();
  inside.Begin(Stage::kPack);
  const int64_t pack_ns = inside.group().Now() - inside.start_ns() - read_ns;
  return RunPacked(inside, self, call, *std::move(packed), read_ns, pack_ns);
}

// What an asynchronous request needs when it is done; destroyed with the GIL held.
struct Pending {
  PySignature self;  // keeps the group
  PyCall call;
  py::object done;
  int64_t start_ns = 0;
  int64_t packed_ns = 0;
  Answer answer;

  void Finish() {
    py::object outputs = py::none(), error = py::none();
    ServingGroup& group = *self.core->group;
    Failure& failure = answer.failure;
    if (failure.ok()) failure = call.call->Check(group.Now(), Stage::kReply);
    try {
      if (failure.ok()) {
        outputs = OutputsDict(self, std::move(answer.outputs), call.output_filter);
      } else {
        error = ServeError(failure);
      }
    } catch (py::error_already_set& raised) {
      error = raised.value();
      failure.code = FailCode::kInternal;
    }
    answer.timing.pack = packed_ns - start_ns;
    answer.timing.Close(group.Now() - start_ns);
    group.Count(answer.timing, failure.code);
    try {
      done(outputs, error, answer.timing);
    } catch (py::error_already_set& raised) {
      raised.discard_as_unraisable("done of tfctr.core._native.ServedSignature.predict_async");
    }
    group.dispatcher().Leave();
  }
};

void PredictAsync(const PySignature& self, const py::dict& inputs, const PyCall& call, const py::object& done) {
  Inside inside(self, call);
  inside.Begin(Stage::kPack);
  PackedRequest request = inside.Pack(inputs);
  auto pending = std::make_unique<Pending>();
  pending->start_ns = inside.start_ns();
  pending->packed_ns = inside.group().Now();
  call.call->origin.pack_ns = pending->packed_ns - pending->start_ns;
  pending->self = self;
  pending->call = call;
  pending->done = done;
  inside.HandOn();
  Completions* completions = self.core->completions.get();
  Pending* raw = pending.release();
  const py::gil_scoped_release released;
  inside.group().Submit(*self.signature, std::move(request), raw->call.call, [raw, completions](Answer answer) {
    raw->answer = std::move(answer);
    completions->Push([raw] {
      const std::unique_ptr<Pending> owned(raw);
      owned->Finish();
    });
  });
}

std::unique_ptr<PyReply> Serve(const PySignature& self, const std::string& protocol, const py::bytes& body,
                               const PyCall& call) {
  const absl::StatusOr<Protocol> of = ProtocolFromName(protocol);
  if (!of.ok()) throw py::value_error(std::string(of.status().message()));
  const Inside inside(self, call);
  inside.Begin(Stage::kParse);
  ReplySpec spec;
  std::tie(spec.model, spec.version, spec.signature) = call.reply_model_spec;
  spec.outputs = call.output_filter;
  const std::string_view bytes(PyBytes_AS_STRING(body.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(body.ptr())));
  MessageReply message;
  {
    const py::gil_scoped_release released;
    message = ServeMessage(&inside.group(), *self.signature, *of, bytes, call.call, std::move(spec), call.user_inputs);
  }
  inside.FailIf(message.failure);
  inside.group().Count(message.timing, FailCode::kOk);
  return std::make_unique<PyReply>(PyReply{std::move(message.body), message.timing});
}

std::vector<std::string> OptionalInputs(const PySignature& self) {
  const SignaturePlan& plan = self.signature->plan();
  std::vector<std::string> names;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    if (plan.parts[i].optional && static_cast<int>(i) != plan.row_to_user) names.push_back(plan.parts[i].name);
  }
  return names;
}

void CheckExecutor(const PySignature& self, int executor) {
  const int executors = static_cast<int>(self.core->group->models().size());
  if (executor >= 0 && executor < executors) return;
  throw py::index_error("there is no executor " + std::to_string(executor) + " among " + std::to_string(executors));
}

py::dict RunOn(const PySignature& self, int executor, const py::dict& inputs) {
  CheckExecutor(self, executor);
  Answer answer;
  try {
    const PackedRequest request = Pack(self.signature->plan(), inputs);
    const py::gil_scoped_release released;
    answer = self.core->group->RunOn(executor, *self.signature, request);
  } catch (const BadRequest& error) {
    answer.failure = {FailCode::kInvalidArgument, Stage::kPack, error.what()};
  }
  if (!answer.failure.ok()) RaiseServeFailed(answer.failure);
  return OutputsDict(self, std::move(answer.outputs), {});
}

py::list RunTogether(const PySignature& self, int executor, const std::vector<py::dict>& inputs) {
  CheckExecutor(self, executor);
  std::vector<std::vector<tensorflow::Tensor>> outputs;
  Failure failure;
  try {
    std::vector<PackedRequest> requests;
    for (const py::dict& one : inputs) requests.push_back(Pack(self.signature->plan(), one));
    const py::gil_scoped_release released;
    failure = self.core->group->RunTogether(executor, *self.signature, requests, &outputs);
  } catch (const BadRequest& error) {
    failure = {FailCode::kInvalidArgument, Stage::kPack, error.what()};
  }
  if (!failure.ok()) RaiseServeFailed(failure);
  py::list result;
  for (auto& one : outputs) result.append(OutputsDict(self, std::move(one), {}));
  return result;
}

std::shared_ptr<GroupCore> MakeGroup(const std::vector<ModelHandle*>& handles, const py::dict& given) {
  if (handles.empty()) throw py::value_error("a group needs at least one model");
  std::vector<std::shared_ptr<const Model>> models;
  for (const ModelHandle* handle : handles) models.push_back(handle->model);
  const GroupOptions options = ReadGroupOptions(given);
  const size_t sets = options.dispatch.cpu_sets.size();
  if (sets != 0 && sets != models.size()) {
    throw py::value_error("cpu_sets: " + std::to_string(sets) + " sets for " + std::to_string(models.size()) +
                          " executors");
  }
  auto core = std::make_shared<GroupCore>();
  std::string error;
  {
    const py::gil_scoped_release released;
    core->group = ServingGroup::Make(std::move(models), options, &error);
  }
  if (core->group == nullptr) throw py::value_error(error);
  std::vector<std::weak_ptr<GroupCore>>& live = LiveGroups();
  live.erase(std::remove_if(live.begin(), live.end(), [](const auto& one) { return one.expired(); }), live.end());
  live.push_back(core);
  return core;
}

std::unique_ptr<PySignature> AddSignature(const std::shared_ptr<GroupCore>& core, const std::string& name,
                                          const py::dict& description, bool batchable, int64_t max_rows) {
  const std::shared_ptr<SignaturePlan> plan(new SignaturePlan(description), [](SignaturePlan* old) {
    const py::gil_scoped_acquire acquired;
    delete old;
  });
  MarkOptional(*core->group->models()[0], plan.get());
  auto self = std::make_unique<PySignature>();
  self->core = core;
  for (const Output& output : plan->plain.outputs) self->output_names.push_back(py::str(output.name));
  absl::StatusOr<const GroupSignature*> added;
  {
    const py::gil_scoped_release released;
    added = core->group->AddSignature(plan, name, batchable, max_rows);
  }
  if (!added.ok()) {
    const bool refused = absl::IsFailedPrecondition(added.status());
    RaiseServeFailed({refused ? FailCode::kInvalidArgument : FailCode::kInternal, Stage::kNone,
                      std::string(added.status().message())});
  }
  self->signature = *added;
  return self;
}

bool Close(const std::shared_ptr<GroupCore>& core, int64_t drain_ns) {
  const py::gil_scoped_release released;
  return core->group->dispatcher().Close(drain_ns);
}

std::unique_ptr<PyCall> MakeCall(int64_t deadline_ns, int priority, bool timing, std::vector<std::string> output_filter,
                                 ModelSpec reply_model_spec, std::string request_id,
                                 std::vector<std::string> user_inputs) {
  auto call = std::make_unique<PyCall>();
  call->call = std::make_shared<Call>(deadline_ns, priority);
  call->timing = timing;
  call->output_filter = std::move(output_filter);
  call->reply_model_spec = std::move(reply_model_spec);
  call->call->origin.id = std::move(request_id);
  call->user_inputs = std::move(user_inputs);
  return call;
}

}  // namespace

void BindServing(py::module_& module) {
  BindServeFailed(module);
  py::module_::import("atexit").attr("register")(py::cpp_function(&StopAllGroups));

  py::class_<PyCall>(module, "Call", "One request: deadline, priority, what its reply says. For one use.")
      .def(py::init(&MakeCall), py::arg("deadline_ns") = 0, py::arg("priority") = 0, py::arg("timing") = false,
           py::arg("output_filter") = std::vector<std::string>(), py::arg("reply_model_spec") = ModelSpec("", 0, ""),
           py::arg("request_id") = "", py::arg("user_inputs") = std::vector<std::string>(),
           "deadline_ns: of CLOCK_MONOTONIC (time.monotonic_ns()), 0: none. Higher priorities run first. "
           "output_filter: the outputs asked for, empty: all. reply_model_spec: (model, version, signature). "
           "user_inputs: inputs and features that may have one row for all rows of the others, beside those that the "
           "model declares.")
      .def_property_readonly("request_id", [](const PyCall& self) { return self.call->origin.id; })
      .def_property_readonly("cancelled", [](const PyCall& self) { return self.call->cancelled(); })
      .def(
          "cancel",
          [](const PyCall& self) {
            const std::shared_ptr<Call> call = self.call;
            const py::gil_scoped_release released;
            call->Cancel();
          },
          "Gives the request up, from any thread: who waits for it gets CANCELLED at once; what runs is dropped.");

  py::class_<Timing>(module, "Timing", "Nanoseconds of each stage of one request, and what it shared its run with.")
      .def("as_dict", &TimingDict, "{'parse', 'pack', ... 'total'}: nanoseconds; the stages add up to 'total'.")
      .def_readonly("total", &Timing::total)
      .def_readonly("rows", &Timing::rows)
      .def_readonly("batch_rows", &Timing::batch_rows)
      .def_readonly("batch_requests", &Timing::batch_requests)
      .def_readonly("executor", &Timing::executor);

  py::class_<PyReply>(module, "Reply", "Bytes of a reply message.")
      .def_property_readonly("body", [](const PyReply& self) { return py::bytes(self.body); })
      .def_property_readonly("timing", [](const PyReply& self) { return TimingDict(self.timing); })
      .def_property_readonly("rows", [](const PyReply& self) { return self.timing.rows; })
      .def_property_readonly("batch_rows", [](const PyReply& self) { return self.timing.batch_rows; })
      .def_property_readonly("batch_requests", [](const PyReply& self) { return self.timing.batch_requests; })
      .def_property_readonly("executor", [](const PyReply& self) { return self.timing.executor; });

  py::class_<PySignature>(module, "ServedSignature", "One signature of a Group; thread-safe. All raise ServeFailed.")
      .def_property_readonly("name", [](const PySignature& self) { return self.signature->name(); })
      .def_property_readonly("optional_inputs", &OptionalInputs, "Inputs that a request may leave out.")
      .def_property_readonly(
          "batchable", [](const PySignature& self) { return self.signature->batchable(); },
          "Whether its requests may share runs.")
      .def("predict", &Predict, py::arg("inputs"), py::arg("call"),
           "dict of inputs -> (dict of outputs, Timing). Waits for its turn with the GIL released.")
      .def("predict_json", &PredictJson, py::arg("request"), py::arg("call"),
           "JsonRequest -> (dict of outputs, Timing); None, and the call is unused, where it has to go over Python's "
           "objects.")
      .def("predict_async", &PredictAsync, py::arg("inputs"), py::arg("call"), py::arg("done"),
           "As predict, without waiting: done(outputs or None, ServeFailed or None, Timing) is called once, on another "
           "thread. What is wrong with the inputs is raised here.")
      .def("serve", &Serve, py::arg("protocol"), py::arg("body"), py::arg("call"),
           "Bytes of a request message ('tfs': PredictRequest, 'kserve': ModelInferRequest) -> Reply.")
      .def("run_on", &RunOn, py::arg("executor"), py::arg("inputs"),
           "Runs on this executor, past the queue, on a low-priority thread: warm-up and proofs.")
      .def(
          "run_together", &RunTogether, py::arg("executor"), py::arg("inputs"),
          "list of dicts of inputs -> list of dicts of outputs: put together, run and taken apart as a batch, past the "
          "queue. INVALID_ARGUMENT in stage batch where they, or their outputs, can't be.");

  py::class_<GroupCore, std::shared_ptr<GroupCore>> group(module, "Group",
                                                          "The executors of one version behind one queue.");
  BindTraces(&group);
  group
      .def(py::init(&MakeGroup), py::arg("models"), py::arg("options") = py::dict(),
           "models: one per executor. options: routing, cpu_sets, queue_limit, max_request_rows (0: any), batching, "
           "runner_nice, "
           "metrics. Raises ValueError.")
      .def("signature", &AddSignature, py::arg("name"), py::arg("description"), py::arg("batchable") = false,
           py::arg("max_rows") = 0,
           "description: as Predictor's. batchable: whether requests may share runs, if the group batches; ServeFailed "
           "with INVALID_ARGUMENT and the reason where they can't. max_rows: of one run; 0: as the group's batches.")
      .def(
          "describe", [](const GroupCore& self) { return DescribeGroup(*self.group); },
          "{'executors': [{runs, requests, rows, busy_ns, failures, running}], 'waiting', 'closed'}.")
      .def(
          "metrics", [](const GroupCore& self) { return GroupMetricsDict(*self.group); },
          "{'histograms': {stage: {'buckets', 'counts', 'sum'}} in seconds, 'requests': {code: n}, 'batch_rows', "
          "'batch_requests', 'tables': {name: {'lookups', 'default_rows'}}, 'executors', 'waiting'}.")
      .def("close", &Close, py::arg("drain_ns") = 0,
           "Takes no new requests, waits for those inside and gives up what is left after drain_ns. Whether all had "
           "left in time.");
}

}  // namespace tfctr
