#include "tfctr/core/runtime/executor.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/cc/saved_model/reader.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"

namespace tfctr {

namespace {

// A pool of no threads: work runs where it is scheduled.
class CallerThread : public tensorflow::thread::ThreadPoolInterface {
 public:
  void Schedule(std::function<void()> work) override { work(); }
  int NumThreads() const override { return 1; }
  int CurrentThreadId() const override { return -1; }
};

class OwnThreads : public tensorflow::thread::ThreadPoolInterface {
 public:
  explicit OwnThreads(int threads)
      : pool_(tensorflow::Env::Default(), tensorflow::ThreadOptions(), "tfctr_intra_op", threads,
              /*low_latency_hint=*/true) {}
  void Schedule(std::function<void()> work) override { pool_.Schedule(std::move(work)); }
  int NumThreads() const override { return pool_.NumThreads(); }
  int CurrentThreadId() const override { return pool_.CurrentThreadId(); }

 private:
  tensorflow::thread::ThreadPool pool_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const ModelOptions& options) {
  std::shared_ptr<Model> model(new Model());
  // TensorFlow gives all sessions of a process one intra-op pool, sized by whichever came first; ours is passed with
  // every run.
  if (options.intra_op_threads > 1) {
    model->intra_op_ = std::make_unique<OwnThreads>(options.intra_op_threads);
    model->pool_threads_ = options.intra_op_threads;
  } else {
    model->intra_op_ = std::make_unique<CallerThread>();
  }
  model->pools_.intra_op_threadpool = model->intra_op_.get();
  absl::Status status;
  if (options.load_nice > 0) {
    // A thread of its own, as niceness can't be taken back, and never the one that holds Python's lock: whoever holds
    // that and gets no processor stalls all other threads.
    std::thread loader([&] {
      setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), options.load_nice);
      status = model->LoadSession(options);
    });
    loader.join();
  } else {
    status = model->LoadSession(options);
  }
  if (!status.ok()) return status;
  return std::shared_ptr<const Model>(std::move(model));
}

absl::Status Model::LoadSession(const ModelOptions& options) {
  tensorflow::SessionOptions session;
  session.config.set_intra_op_parallelism_threads(options.intra_op_threads);
  session.config.set_inter_op_parallelism_threads(-1);
  session.config.set_allow_soft_placement(true);
  session.config.mutable_gpu_options()->set_allow_growth(true);  // several models share one device
  session.config.MergeFrom(options.config);
  const std::unordered_set<std::string> tags(options.tags.begin(), options.tags.end());
  tensorflow::MetaGraphDef graph;
  absl::Status status = tensorflow::ReadMetaGraphDefFromSavedModel(options.path, tags, &graph);
  if (status.ok()) status = RewriteDevices(options.devices, graph.mutable_graph_def());
  if (status.ok()) RewriteEngines(options.engine, graph.mutable_graph_def());
  if (status.ok()) status = tensorflow::LoadMetagraphIntoSession(session, graph, &session_);
  // Restores the variables where there are any, and runs the init op.
  if (status.ok()) status = tensorflow::RestoreSession(tensorflow::RunOptions(), graph, options.path, &session_);
  std::vector<tensorflow::DeviceAttributes> devices;
  if (status.ok()) status = session_->ListDevices(&devices);
  if (!status.ok()) return status;
  for (const tensorflow::DeviceAttributes& device : devices) session_devices_.push_back(device.name());
  device_uses_ = DevicesOf(graph.graph_def(), session_devices_);
  engines_ = EnginesOf(graph.graph_def());
  for (const tensorflow::NodeDef& node : graph.graph_def().node()) {
    if (node.op() == "PlaceholderWithDefault") defaults_.insert(node.name() + ":0");
  }
  signatures_.swap(*graph.mutable_signature_def());
  return absl::OkStatus();
}

absl::Status Model::Pin(const std::vector<int>& cpus) const {
  if (pool_threads_ == 0 || cpus.empty()) return absl::OkStatus();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return absl::InvalidArgumentError("there is no CPU " + std::to_string(cpu));
    CPU_SET(cpu, &set);
  }
  // Each piece of work waits for the others, so that each thread takes one.
  std::mutex mutex;
  std::condition_variable changed;
  int there = 0, left = 0, refused = 0;
  for (int i = 0; i < pool_threads_; ++i) {
    intra_op_->Schedule([&] {
      const int error = sched_setaffinity(0, sizeof(set), &set) == 0 ? 0 : errno;
      std::unique_lock<std::mutex> lock(mutex);
      if (error != 0) refused = error;
      ++there;
      changed.notify_all();
      changed.wait(lock, [&] { return there == pool_threads_; });
      ++left;
      changed.notify_all();
    });
  }
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return left == pool_threads_; });
  if (refused == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string("its threads can't run on the CPUs given: ") + std::strerror(refused));
}

absl::Status Model::RunNode(const std::string& node,
                            const std::vector<std::pair<std::string, tensorflow::Tensor>>& feeds) const {
  return session_->Run(tensorflow::RunOptions(), feeds, {}, {node}, nullptr, nullptr, pools_);
}

absl::StatusOr<std::unique_ptr<Program>> Program::Make(std::shared_ptr<const Model> model,
                                                       const std::vector<std::string>& feeds,
                                                       const std::vector<std::string>& fetches, Trace trace) {
  tensorflow::CallableOptions options;
  for (const std::string& feed : feeds) options.add_feed(feed);
  std::vector<From> from;
  std::vector<std::string> unique;
  for (const std::string& fetch : fetches) {
    const auto fed = std::find(feeds.begin(), feeds.end(), fetch);
    if (fed != feeds.end()) {
      from.push_back({true, static_cast<size_t>(fed - feeds.begin())});
      continue;
    }
    const auto known = std::find(unique.begin(), unique.end(), fetch);
    from.push_back({false, static_cast<size_t>(known - unique.begin())});
    if (known == unique.end()) unique.push_back(fetch);
  }
  for (const std::string& fetch : unique) options.add_fetch(fetch);
  tensorflow::RunOptions* run = options.mutable_run_options();
  run->set_inter_op_thread_pool(-1);
  if (trace == Trace::kTimes || trace == Trace::kGraphs) run->set_trace_level(tensorflow::RunOptions::FULL_TRACE);
  // Above SOFTWARE_TRACE a run starts the process's device profiler, which fails where anybody else records.
  if (trace == Trace::kHostTimes) run->set_trace_level(tensorflow::RunOptions::SOFTWARE_TRACE);
  run->set_output_partition_graphs(trace == Trace::kGraphs || trace == Trace::kGraphOnly);
  int64_t handle = 0;
  const absl::Status status = model->session()->MakeCallable(options, &handle);
  if (!status.ok()) return status;
  return std::unique_ptr<Program>(new Program(std::move(model), handle, std::move(from)));
}

Program::~Program() { model_->session()->ReleaseCallable(handle_).IgnoreError(); }

absl::Status Program::Run(const std::vector<tensorflow::Tensor>& feeds, std::vector<tensorflow::Tensor>* outputs,
                          tensorflow::RunMetadata* metadata) const {
  std::vector<tensorflow::Tensor> fetched;
  const absl::Status status = model_->session()->RunCallable(handle_, feeds, &fetched, metadata, model_->pools());
  if (!status.ok()) return status;
  outputs->clear();
  outputs->reserve(from_.size());
  for (const From& from : from_) outputs->push_back(from.fed ? feeds[from.index] : fetched[from.index]);
  return absl::OkStatus();
}

}  // namespace tfctr
