// Contexts of which each is used by one call at a time. More are made while calls wait, up to a limit.
//
// A call that finds no free context does not make one: it takes the next that is given back, while a thread makes more
// as long as calls wait. Making one (a compilation) takes as long as a hundred runs.
//
// Thread-safety: Acquire and Release from any thread; no lock is held while a context is made or runs.
#ifndef TFCTR_CORE_OPENVINO_CONTEXT_POOL_H_
#define TFCTR_CORE_OPENVINO_CONTEXT_POOL_H_

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tfctr/core/storage/status.h"

namespace tfctr {

template <typename Context>
class ContextPool {
 public:
  using Maker = std::function<Result<std::unique_ptr<Context>>()>;

  // most: contexts at most. maker: called without a lock, by one thread at a time.
  ContextPool(int most, Maker maker) : most_(most), maker_(std::move(maker)) {}
  // Waits for a context that is being made. No call may run or wait.
  ~ContextPool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }
  ContextPool(const ContextPool&) = delete;
  ContextPool& operator=(const ContextPool&) = delete;

  // Makes a context on this thread. One has to be there before Acquire is called.
  Status Make() {
    Result<std::unique_ptr<Context>> context = maker_();
    if (!context.ok()) return context.status();
    std::lock_guard<std::mutex> lock(mutex_);
    ++made_;
    free_.push_back(context.Take());
    return Status::Ok();
  }

  // A context that this caller has alone: a free one, else the next that is given back or made.
  std::unique_ptr<Context> Acquire() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    if (free_.empty() && made_ < most_ && !making_ && failed_.empty()) StartMaking();
    released_.wait(lock, [this] { return !free_.empty(); });
    --waiting_;
    std::unique_ptr<Context> context = std::move(free_.back());
    free_.pop_back();
    return context;
  }

  void Release(std::unique_ptr<Context> context) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      free_.push_back(std::move(context));
    }
    released_.notify_one();
  }

  // How many contexts were made.
  int made() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return made_;
  }

  // Why there are no more though calls waited; "" where that did not happen. Calls share those that there are then.
  std::string failed() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return failed_;
  }

 private:
  // Called with the lock, which it keeps.
  void StartMaking() {
    if (thread_.joinable()) thread_.join();  // it is past its last use of the lock
    making_ = true;
    try {
      thread_ = std::thread([this] { MakeWhileCallsWait(); });
    } catch (const std::system_error& error) {
      failed_ = error.what();
      making_ = false;
    }
  }

  void MakeWhileCallsWait() {
    while (true) {
      const Status status = MakeOrSay();
      std::lock_guard<std::mutex> lock(mutex_);
      if (!status.ok()) failed_ = status.message;
      released_.notify_one();
      if (status.ok() && !ending_ && waiting_ > static_cast<int>(free_.size()) && made_ < most_) continue;
      making_ = false;
      return;
    }
  }

  // An exception that leaves a thread ends the process.
  Status MakeOrSay() {
    try {
      return Make();
    } catch (const std::exception& error) {
      return Status::Invalid(error.what());
    }
  }

  const int most_;
  const Maker maker_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::vector<std::unique_ptr<Context>> free_;
  int made_ = 0;
  int waiting_ = 0;  // calls in Acquire
  bool making_ = false;
  bool ending_ = false;
  std::string failed_;
  std::thread thread_;  // joinable once a context was made by it
};

}  // namespace tfctr

#endif  // TFCTR_CORE_OPENVINO_CONTEXT_POOL_H_
