#include "tfctr/core/runtime/completions.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "pybind11/pybind11.h"

namespace tfctr {

struct Completions::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::function<void()>> work;
  bool stopping = false;
  std::thread thread;  // started by the first work
};

Completions::Completions() : state_(std::make_shared<State>()) {}

Completions::~Completions() { Stop(); }

void Completions::Stop() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_one();
  }
  if (!state_->thread.joinable()) return;
  if (state_->thread.get_id() == std::this_thread::get_id()) {
    state_->thread.detach();
  } else {
    state_->thread.join();
  }
}

void Completions::Push(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->stopping) return;
  state_->work.push_back(std::move(work));
  if (!state_->thread.joinable()) state_->thread = std::thread([state = state_] { Work(state); });
  state_->changed.notify_one();
}

void Completions::Work(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "tfctr_done");
  std::vector<std::function<void()>> batch;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(state->mutex);
      state->changed.wait(lock, [&] { return state->stopping || !state->work.empty(); });
      if (state->work.empty()) return;
      batch.swap(state->work);
    }
    const pybind11::gil_scoped_acquire acquired;
    for (auto& work : batch) {
      work();
      work = nullptr;
    }
    batch.clear();
  }
}

}  // namespace tfctr
