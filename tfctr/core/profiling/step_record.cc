#include "tfctr/core/profiling/step_record.h"

#include <time.h>

#include <algorithm>
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

}  // namespace

StepRecord* StepRecord::Current() { return current; }
void StepRecord::SetCurrent(StepRecord* record) { current = record; }

void StepRecord::Grow(size_t table) { tables_.resize(table + 1); }

void StepRecord::Clear() {
  lookup_ns = dense_ns = pack_ns = 0;
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

int64_t StepClock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

}  // namespace tfctr
