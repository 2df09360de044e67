// What the ops of one run add up: nanoseconds of lookups, dense towers and unpacking, and ids per table. Whoever runs a
// graph sets a record for its thread; ops run on that thread (inter-op -1) and add to the current record, if there is
// one.
//
// Thread-safety: a record belongs to one thread. Work that an op spreads over other threads is added up by the op.
// Cost: two readings of the clock per op, one addition per lookup; without a record, one look at a thread-local
// pointer.
#ifndef TFCTR_CORE_PROFILING_STEP_RECORD_H_
#define TFCTR_CORE_PROFILING_STEP_RECORD_H_

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

class TFCTR_EXPORT StepRecord {
 public:
  int64_t lookup_ns = 0;
  int64_t dense_ns = 0;
  int64_t pack_ns = 0;

  // `table`: see TableNumber.
  void AddTable(size_t table, int64_t lookups, int64_t default_rows) {
    if (table >= tables_.size()) Grow(table);
    tables_[table].lookups += lookups;
    tables_[table].default_rows += default_rows;
  }
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
  void Grow(size_t table);

  std::vector<TableCounts> tables_;
};

// Makes `record` (may be nullptr) that of this thread, until the scope ends.
class ScopedStep {
 public:
  explicit ScopedStep(StepRecord* record) : before_(StepRecord::Current()) { StepRecord::SetCurrent(record); }
  ~ScopedStep() { StepRecord::SetCurrent(before_); }
  ScopedStep(const ScopedStep&) = delete;
  ScopedStep& operator=(const ScopedStep&) = delete;

 private:
  StepRecord* const before_;
};

// CLOCK_MONOTONIC in nanoseconds.
int64_t StepClock();

// Adds the time until the scope ends to a field of the current record.
class StepTimer {
 public:
  explicit StepTimer(int64_t StepRecord::* field)
      : record_(StepRecord::Current()), field_(field), start_(record_ == nullptr ? 0 : StepClock()) {}
  ~StepTimer() {
    if (record_ != nullptr) record_->*field_ += StepClock() - start_;
  }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;
  StepRecord* record() const { return record_; }

 private:
  StepRecord* const record_;
  int64_t StepRecord::* const field_;
  const int64_t start_;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_PROFILING_STEP_RECORD_H_
