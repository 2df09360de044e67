// What the ops of one run add up: nanoseconds of lookups, dense towers and unpacking, and ids per table. Whoever runs a
// graph sets a record for its thread; ops run on that thread (inter-op -1) and add to the current record, if there is
// one.
//
// Thread-safety: a record belongs to one thread. Work that an op spreads over other threads is added up by the op.
// Cost: two readings of the time stamp counter per op, two additions per lookup; without a record, one look at a
// thread-local pointer.
#ifndef TFCTR_CORE_PROFILING_STEP_RECORD_H_
#define TFCTR_CORE_PROFILING_STEP_RECORD_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tfctr/core/export.h"

namespace tfctr {

struct TableCounts {
  int64_t lookups = 0;       // ids that were looked up
  int64_t default_rows = 0;  // of these, the ids that got the table's default row
};

enum class StepPart : uint8_t { kLookup, kDense, kPack };

class TFCTR_EXPORT StepRecord {
 public:
  // Complete when the ScopedStep has ended.
  int64_t lookup_ns = 0;
  int64_t dense_ns = 0;
  int64_t pack_ns = 0;

  // Counts by TableNumber, at least `count` of them, to add to.
  TableCounts* Tables(size_t count) {
    if (count > tables_.size()) Grow(count);
    return tables_.data();
  }
  void AddTable(size_t table, int64_t lookups, int64_t default_rows) {
    TableCounts& counts = Tables(table + 1)[table];
    counts.lookups += lookups;
    counts.default_rows += default_rows;
  }
  void AddTicks(StepPart part, int64_t ticks) { ticks_[static_cast<size_t>(part)] += ticks; }
  // By table number; may be shorter than there are tables.
  const std::vector<TableCounts>& tables() const { return tables_; }
  // Back to nothing; keeps its memory.
  void Clear();

  // The record of this thread's run; nullptr: nobody wants to know.
  static StepRecord* Current();

  // Numbers of table names, the same in the whole process, never given back.
  static size_t TableNumber(const std::string& name);
  static std::string TableName(size_t number);

 private:
  friend class ScopedStep;
  static void SetCurrent(StepRecord* record);
  void Grow(size_t count);
  // Ticks become nanoseconds.
  void Settle();

  std::array<int64_t, 3> ticks_{};  // by StepPart
  std::vector<TableCounts> tables_;
};

// Makes `record` (may be nullptr) that of this thread, until the scope ends.
class ScopedStep {
 public:
  explicit ScopedStep(StepRecord* record) : record_(record), before_(StepRecord::Current()) {
    StepRecord::SetCurrent(record);
  }
  ~ScopedStep() {
    StepRecord::SetCurrent(before_);
    if (record_ != nullptr) record_->Settle();
  }
  ScopedStep(const ScopedStep&) = delete;
  ScopedStep& operator=(const ScopedStep&) = delete;

 private:
  StepRecord* const record_;
  StepRecord* const before_;
};

// The cheapest clock there is: the time stamp counter on x86 (less than half of what clock_gettime costs), else
// nanoseconds.
inline int64_t StepTicks() {
#if defined(__x86_64__)
  return static_cast<int64_t>(__builtin_ia32_rdtsc());
#else
  return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

// Adds the time until the scope ends to the current record.
class StepTimer {
 public:
  explicit StepTimer(StepPart part)
      : record_(StepRecord::Current()), part_(part), start_(record_ == nullptr ? 0 : StepTicks()) {}
  ~StepTimer() {
    if (record_ != nullptr) record_->AddTicks(part_, StepTicks() - start_);
  }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;
  StepRecord* record() const { return record_; }

 private:
  StepRecord* const record_;
  const StepPart part_;
  const int64_t start_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_PROFILING_STEP_RECORD_H_
