#include "tfctr/core/profiling/step_record.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <unordered_map>

namespace tfctr {

namespace {

thread_local StepRecord* current = nullptr;

struct Names {
  std::mutex mutex;
  std::unordered_map<std::string, size_t> numbers;
  std::vector<std::string> names;
};

Names& AllNames() {
  static Names* names = new Names();  // outlives all threads
  return *names;
}

int64_t Nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Both clocks at one moment: of several readings the one that took least, as a thread may lose its turn in between.
struct Moment {
  int64_t ns = 0;
  int64_t ticks = 0;

  Moment() {
    int64_t least = INT64_MAX;
    for (int i = 0; i < 5; ++i) {
      const int64_t before = Nanoseconds(), between = StepTicks(), after = Nanoseconds();
      if (after - before >= least) continue;
      least = after - before;
      ns = before + (after - before) / 2;
      ticks = between;
    }
  }
};

// Nanoseconds per tick: measured over the time since the library was loaded, again where that has doubled. On every
// CPU that TensorFlow runs on, the counter goes at one rate, whatever the clock of the cores.
class TickLength {
 public:
  double Get() {
    const int64_t ticks = StepTicks() - first_.ticks;
    if (ticks > 2 * measured_at_.load(std::memory_order_relaxed)) Measure();
    return length_.load(std::memory_order_relaxed);
  }

 private:
  void Measure() {
    Moment now;
    while (now.ns - first_.ns < 200'000) now = Moment();  // of a library that was loaded just now
    const int64_t ns = now.ns - first_.ns, ticks = now.ticks - first_.ticks;
    length_.store(ticks > 0 ? static_cast<double>(ns) / static_cast<double>(ticks) : 0, std::memory_order_relaxed);
    measured_at_.store(std::max<int64_t>(ticks, 1), std::memory_order_relaxed);
  }

  const Moment first_;
  std::atomic<int64_t> measured_at_{0};
  std::atomic<double> length_{0};
};

TickLength tick_length;

}  // namespace

StepRecord* StepRecord::Current() { return current; }
void StepRecord::SetCurrent(StepRecord* record) { current = record; }

void StepRecord::Grow(size_t count) { tables_.resize(count); }

void StepRecord::Settle() {
  const double length = tick_length.Get();
  int64_t* const fields[] = {&lookup_ns, &dense_ns, &pack_ns};
  for (size_t i = 0; i < ticks_.size(); ++i) {
    // A thread that moved to a CPU whose counter is a little behind may have seen it go back.
    if (ticks_[i] > 0) *fields[i] += static_cast<int64_t>(static_cast<double>(ticks_[i]) * length);
  }
  ticks_.fill(0);
}

void StepRecord::Clear() {
  lookup_ns = dense_ns = pack_ns = 0;
  ticks_.fill(0);
  std::fill(tables_.begin(), tables_.end(), TableCounts());
}

size_t StepRecord::TableNumber(const std::string& name) {
  Names& all = AllNames();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto [found, made] = all.numbers.emplace(name, all.names.size());
  if (made) all.names.push_back(name);
  return found->second;
}

std::string StepRecord::TableName(size_t number) {
  Names& all = AllNames();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return number < all.names.size() ? all.names[number] : std::string();
}

}  // namespace tfctr
