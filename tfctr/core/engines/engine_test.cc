// Engines over a fake provider: checks of inputs, empty batches, sharing, one opening for many threads, failures.
#include "tfctr/core/engines/engine.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tfctr/core/engines/cpu.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

std::atomic<int> opened{0};
std::atomic<int> alive{0};

// Output k: the rows' first column, plus k.
class FakeEngine : public Engine {
 public:
  explicit FakeEngine(const EngineSpec& spec) : Engine(spec) { ++alive; }
  ~FakeEngine() override { --alive; }
  Result<std::map<std::string, std::string>> Export() override { return std::map<std::string, std::string>(); }
  std::string Describe() override { return "{}"; }
  int runs() const { return runs_; }

 protected:
  Status RunChecked(const EngineCall& call) override {
    ++runs_;
    const float* x = static_cast<const float*>(call.inputs[0].data);
    const int64_t width = call.inputs[0].dims[1];
    if (x[0] == 13.0f) return Status::Invalid("unlucky");
    for (size_t k = 0; k < call.outputs.size(); ++k) {
      float* out = static_cast<float*>(call.outputs[k]);
      for (int64_t row = 0; row < call.dims[k][0]; ++row) out[row] = x[row * width] + static_cast<float>(k);
    }
    return Status::Ok();
  }

 private:
  std::atomic<int> runs_{0};
};

Result<std::shared_ptr<Engine>> OpenFake(const EngineSpec& spec) {
  ++opened;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // long enough for others to come in between
  if (spec.options == "fail") return Status::NotFound("no device");
  return std::shared_ptr<Engine>(std::make_shared<FakeEngine>(spec));
}

class Memory : public OutputSink {
 public:
  Result<void*> Allocate(size_t index, const std::vector<int64_t>& dims) override {
    if (fail) return Status::NoSpace("no memory");
    shapes.push_back(dims);
    values.emplace_back(static_cast<size_t>(dims.empty() ? 1 : dims[0]) + 1);
    CHECK_EQ(shapes.size(), index + 1);
    return static_cast<void*>(values.back().data());
  }
  bool fail = false;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<std::vector<float>> values;
};

EngineSpec Spec(const std::string& options = "") {
  EngineSpec spec;
  spec.provider = "fake";
  spec.precision = "fp32";
  spec.options = options;
  spec.label = "m/score";
  CHECK_OK(spec.AddInput("x", DType::kFloat32, "N,3"));
  CHECK_OK(spec.AddInput("user", DType::kFloat32, "U,2"));
  CHECK_OK(spec.AddInput("scale", DType::kInt64, ""));
  CHECK_OK(spec.AddOutput("p", DType::kFloat32, "N"));
  CHECK_OK(spec.AddOutput("q", DType::kFloat32, "N"));
  return spec;
}

struct Call {
  std::vector<std::vector<int64_t>> dims;
  std::vector<float> x;
  std::vector<InputView> views;

  explicit Call(int64_t rows, int64_t users = 1) : dims{{rows, 3}, {users, 2}, {}}, x(static_cast<size_t>(rows * 3)) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    for (const auto& shape : dims) {
      views.push_back({DType::kFloat32, x.data(), shape.data(), static_cast<int>(shape.size())});
    }
    views[2].dtype = DType::kInt64;
  }
};

void Runs() {
  const auto engine = OpenEngine(Spec()).Take();
  const Call call(4, 2);
  Memory memory;
  CHECK_OK(engine->Run(call.views, &memory));
  CHECK_EQ(memory.shapes[0].size(), 1u);
  CHECK_EQ(memory.shapes[1][0], 4);
  CHECK_EQ(memory.values[1][3], 10.0f);
  const Call none(0, 5);
  Memory empty;
  CHECK_OK(engine->Run(none.views, &empty));
  CHECK_EQ(empty.shapes[0][0], 0);
  CHECK_EQ(static_cast<FakeEngine*>(engine.get())->runs(), 1);
}

void WrongCalls() {
  const auto engine = OpenEngine(Spec()).Take();
  const auto fails = [&engine](const Call& call, const std::string& part) {
    Memory memory;
    CHECK_FAILS(engine->Run(call.views, &memory), Code::kInvalid, part);
    CHECK(memory.shapes.empty());
  };
  Call call(4);
  call.views[0].dtype = DType::kFloat64;
  fails(call, "engine 'm/score' (fake): input 'x' is float64 [4, 3], expected float32 [N, 3]");
  call = Call(4);
  call.views[0].rank = 1;
  fails(call, "input 'x' is float32 [4], expected float32 [N, 3]");
  call = Call(4);
  call.dims[1][1] = 7;
  call.views[1].dims = call.dims[1].data();
  fails(call, "input 'user' is float32 [1, 7], expected float32 [U, 2], N = 4, U = 1");
  call = Call(4);
  call.views.pop_back();
  fails(call, "got 2 inputs, expected 3");

  Memory memory;
  call = Call(4);
  memory.fail = true;
  CHECK_FAILS(engine->Run(call.views, &memory), Code::kNoSpace, "engine 'm/score' (fake): no memory");
  memory.fail = false;
  call.x[0] = 13.0f;
  const std::string label = "other";
  CHECK_FAILS(engine->Run(call.views, &memory, &label), Code::kInvalid, "engine 'other' (fake): unlucky");
}

void RowsOfUsers() {
  EngineSpec spec = Spec("users");
  CHECK_OK(spec.AddInput(kRowToUserName, DType::kInt64, "N"));
  const auto engine = OpenEngine(spec).Take();
  const int64_t dims[] = {3};
  int64_t users[] = {0, 1, 1};
  const auto run = [&] {
    Call call(3, 2);
    call.views.push_back({DType::kInt64, users, dims, 1});
    Memory memory;
    return engine->Run(call.views, &memory);
  };
  CHECK_OK(run());
  for (const int64_t wrong : {int64_t{2}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    users[2] = wrong;
    CHECK_FAILS(run(), Code::kInvalid, "holds " + std::to_string(wrong) + " for row 2, expected a user row in [0, 2)");
  }
}

void Specs() {
  EngineSpec spec = Spec();
  CHECK_FAILS(spec.AddInput("y", DType::kFloat32, "N,-3"), Code::kInvalid, "tensor 'y': size '-3'");
  CHECK_FAILS(spec.AddInput("y", DType::kFloat32, "N,,3"), Code::kInvalid, "size ''");
  CHECK_FAILS(spec.AddInput("y", DType::kFloat32, "3x"), Code::kInvalid, "size '3x'");
  CHECK_FAILS(spec.AddInput("y", DType::kInvalid, "N"), Code::kInvalid, "input 'y'");
  CHECK_FAILS(spec.AddOutput("z", DType::kFloat32, "M"), Code::kInvalid, "no input has its open size 'M'");
  CHECK_EQ(spec.DimsText(spec.inputs[0]), std::string("[N, 3]"));
  const std::string key = spec.Key();
  spec.label = "another";
  CHECK_EQ(spec.Key(), key);
  spec.threads = 2;
  CHECK(spec.Key() != key);

  // A value that has no rows is not known for an empty batch.
  EngineSpec odd = Spec("odd");
  CHECK_OK(odd.AddOutput("constant", DType::kFloat32, "1"));
  const auto engine = OpenEngine(odd).Take();
  Memory memory;
  CHECK_FAILS(engine->Run(Call(0).views, &memory), Code::kInvalid, "output 'constant' [1] does not depend on the rows");
}

void SharedByWhatTheyAre() {
  TempDir dir;
  WriteWhole(dir.File("a"), "model");
  WriteWhole(dir.File("b"), "model");
  WriteWhole(dir.File("c"), "another");
  const auto with = [&dir](const std::string& file) {
    EngineSpec spec = Spec();
    spec.files.push_back({"onnx", BlobFile::Open(dir.File(file)).Take()});
    return OpenEngine(spec).Take();
  };
  const auto a = with("a");
  CHECK(a == with("b"));  // the same bytes
  CHECK(a != with("c"));
}

void OneOpeningForManyThreads() {
  opened = 0;
  std::vector<std::shared_ptr<Engine>> engines(8);
  std::vector<std::thread> threads;
  for (auto& engine : engines) {
    threads.emplace_back([&engine] { engine = OpenEngine(Spec("many")).Take(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& engine : engines) CHECK(engine == engines[0]);
  CHECK_EQ(opened.load(), 1);
}

void FailuresAreNotKept() {
  opened = 0;
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back(
        [] { CHECK_FAILS(OpenEngine(Spec("fail")).status(), Code::kNotFound, "engine 'm/score' (fake): no device"); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(opened.load(), 4);
}

void ManyThreadsRun() {
  const auto engine = OpenEngine(Spec("threads")).Take();
  std::vector<std::thread> threads;
  for (int t = 1; t <= 8; ++t) {
    threads.emplace_back([&engine, t] {
      for (int turn = 0; turn < 200; ++turn) {
        const Call call(t);
        Memory memory;
        CHECK_OK(engine->Run(call.views, &memory));
        CHECK_EQ(memory.values[1][static_cast<size_t>(t - 1)], static_cast<float>((t - 1) * 3 + 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void MissingProviders() {
  EngineSpec spec = Spec();
  spec.provider = "late";
  CHECK_FAILS(OpenEngine(spec).status(), Code::kInvalid, "'late' is not loaded in this process (loaded: fake)");
  SetProviderLoader([](const std::string& name) {
    if (name != "late") return Status::NotFound("no library of it");
    RegisterEngineProvider("late", &OpenFake);
    return Status::Ok();
  });
  CHECK_OK(OpenEngine(spec).status());
  spec.provider = "never";
  CHECK_FAILS(OpenEngine(spec).status(), Code::kInvalid, "no library of it");
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::RegisterEngineProvider("fake", &tfctr::OpenFake);
  tfctr::Runs();
  tfctr::WrongCalls();
  tfctr::RowsOfUsers();
  tfctr::Specs();
  tfctr::SharedByWhatTheyAre();
  tfctr::OneOpeningForManyThreads();
  tfctr::FailuresAreNotKept();
  tfctr::ManyThreadsRun();
  tfctr::MissingProviders();
  CHECK_EQ(tfctr::alive.load(), 0);  // every engine ended with its last user
  CHECK(!tfctr::CpuIsa().empty());
  CHECK_EQ(tfctr::CpuHasBf16(), tfctr::CpuIsa().find("bf16") != std::string::npos);
  return 0;
}
