// Admission: which new keys get a row. A key without a row has a count of its occurrences in training lookups, kept
// here; the lookup call in which the count reaches `min_count` gives it a row. docs/embedding_variable.md has the
// rules.
//
// Use by the table, once per lookup call: Add() with all distinct keys of the call that have no row (its own locks not
// held), rows for the admitted ones, then Forget() of every key that has a row by then. A row may have appeared
// between the table's look and Add(): the occurrences then belong to the row, and the key is forgotten as well.
//
// Thread-safety: every method may be called from any thread. Add() of one key is atomic; all counts of an Add() are
// written before any of its totals is read, so the result does not depend on the order of its keys.
// Cost: counter: one hash probe per key, under a mutex per stripe and batch. Bloom: ceil(-log2(p)) atomic cells per
// key, no mutex but against a reset.
#ifndef TFCTR_CORE_STORAGE_ADMISSION_H_
#define TFCTR_CORE_STORAGE_ADMISSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tfctr/core/storage/now.h"
#include "tfctr/core/storage/status.h"

namespace tfctr {

struct AdmissionConfig {
  enum class Kind { kNone, kCounter, kBloom };
  Kind kind = Kind::kNone;
  uint32_t min_count = 1;             // a key whose count reaches this is admitted
  bool last_step = false;             // counter: remember the step of a key's last count (for eviction by step or LRU)
  bool last_time = false;             // counter: remember the time of a key's last count (for eviction by TTL)
  bool changes = false;               // counter: remember the mark of a key's last change, and which keys went
  uint64_t expected_keys = 0;         // bloom: distinct keys that the filter is sized for
  double false_positive_rate = 0.01;  // bloom: of a key's count, at expected_keys
  int counter_bits = 16;              // bloom: 8, 16 or 32; counts stop at 2^bits - 1
  int64_t reset_every_steps = 0;      // bloom: all counts become 0 when the step crosses a multiple; 0 = never
};

// One counted key. `last_step`, `last_time_ms` and `change` are 0 where the configuration does not keep them.
struct KeyCount {
  int64_t key = 0;
  uint32_t count = 0;
  int64_t last_step = 0;
  int64_t last_time_ms = 0;
  uint32_t change = 0;  // the table's mark when it last changed
};

class Admission {
 public:
  // kNone gives a null pointer: every key is admitted. Refuses min_count 0, counts that a cell can't hold, rates
  // outside (0, 1), a Bloom filter without expected_keys: kInvalid naming the option and the value.
  static Result<std::shared_ptr<Admission>> Create(const AdmissionConfig& config);
  virtual ~Admission() = default;

  const AdmissionConfig& config() const { return config_; }

  // Adds counts[i] occurrences of keys[i]; the keys are distinct and have no row. totals[i] is the key's count after
  // the call (saturating at 2^32-1, or at what a Bloom cell holds), admitted[i] = 1 where it is at least min_count.
  virtual void Add(const int64_t* keys, const uint32_t* counts, size_t n, Now now, uint8_t* admitted,
                   uint32_t* totals) = 0;
  // The keys have rows now: their counters go. A Bloom filter can't forget one key and does nothing.
  virtual void Forget(const int64_t* keys, size_t n) = 0;
  // The count of a key without a row; for a Bloom filter, its upper estimate.
  virtual uint32_t Count(int64_t key) const = 0;

  virtual uint64_t size() const = 0;           // keys counted; 0 for a Bloom filter, which does not know
  virtual uint64_t bytes() const = 0;          // memory of the counts, exact
  virtual uint64_t bytes_per_key() const = 0;  // what one counted key takes in an index; 0 for a Bloom filter

  // Counter only (a Bloom filter has no keys: parts() is 0, the others do nothing). A part is visited under its mutex:
  // `visit` must not call this object. Parts are of one moment each.
  virtual size_t parts() const { return 0; }
  virtual void Visit(size_t part, const std::function<void(const KeyCount&)>& visit) const;
  // Drops those of `keys` for which `condemned` still holds, checked under the mutex. Returns how many.
  virtual size_t EraseIf(const int64_t* keys, size_t n, const std::function<bool(const KeyCount&)>& condemned);
  // Sets counts as they were saved (restore, import), instead of what these keys had; counts of 0 are left out. A Bloom
  // filter adds them to its cells.
  virtual void Put(const KeyCount* counts, size_t n) = 0;
  // Drops everything that was counted.
  virtual void Clear() = 0;

  // The table's mark (EmbeddingTable::EndMark): what changes from now on is stamped with it.
  void set_mark(uint32_t mark) { mark_.store(mark, std::memory_order_relaxed); }
  // Counter only, where it keeps changes: visits the counts of a part that changed after the end of `mark`, and appends
  // the keys that EraseIf took since; both of one moment. False where that is not known any more.
  virtual bool VisitChanged(size_t part, uint32_t mark, const std::function<void(const KeyCount&)>& visit,
                            std::vector<int64_t>* removed) const;
  // Bloom filter only: whether any cell changed after the end of `mark`.
  virtual bool ChangedSince(uint32_t mark) const { return true; }

  // Bloom filter only: its whole state as bytes (a header with its geometry, then the cells, little-endian), readable
  // and writable in ranges so that a checkpoint streams it. 0 bytes for a counter.
  virtual uint64_t state_bytes() const { return 0; }
  virtual void ReadState(uint64_t offset, uint64_t size, uint8_t* out) const;
  // Ranges must come in order from 0. A header of another geometry is refused (kInvalid naming both).
  virtual Status WriteState(uint64_t offset, uint64_t size, const uint8_t* bytes);

 protected:
  explicit Admission(const AdmissionConfig& config) : config_(config) {}
  uint32_t mark() const { return mark_.load(std::memory_order_relaxed); }

 private:
  AdmissionConfig config_;
  std::atomic<uint32_t> mark_{1};
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_ADMISSION_H_
