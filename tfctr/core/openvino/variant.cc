#include "tfctr/core/openvino/variant.h"

#include <exception>
#include <utility>

namespace tfctr {
namespace {

// OpenVINO's messages have many lines, with paths of its sources.
std::string OneLine(const std::string& text) {
  std::string line;
  bool space = false;
  for (const char c : text) {
    const bool blank = c == '\n' || c == '\r' || c == '\t' || c == ' ';
    if (!blank) {
      if (space && !line.empty()) line += ' ';
      line += c;
    }
    space = blank;
  }
  constexpr size_t kMost = 600;
  return line.size() > kMost ? line.substr(0, kMost) + "..." : line;
}

}  // namespace

Status Guarded(const std::function<Status()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return Status::Invalid("OpenVINO: " + OneLine(error.what()));
  }
}

Result<std::unique_ptr<Context>> Variant::Acquire() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    released_.wait(lock, [this] { return !free_.empty() || made_ < max_; });
    if (!free_.empty()) {
      std::unique_ptr<Context> context = std::move(free_.back());
      free_.pop_back();
      return context;
    }
    ++made_;
  }
  Result<std::unique_ptr<Context>> context = maker_();
  if (!context.ok()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      --made_;
    }
    released_.notify_one();
  }
  return context;
}

void Variant::Release(std::unique_ptr<Context> context) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(context));
  }
  released_.notify_one();
}

int Variant::made() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return made_;
}

}  // namespace tfctr
