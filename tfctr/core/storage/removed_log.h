// Which keys of a part of a table were removed since a mark: what a delta says besides the rows that changed.
//
// Bounded: where more was removed than is worth telling, the oldest marks are forgotten, and whoever asks for one of
// them is told so (and saves everything instead).
// Thread-safety: none; whoever owns the part locks it. Cost: 16 bytes a removal, amortised constant time.
#ifndef TFCTR_CORE_STORAGE_REMOVED_LOG_H_
#define TFCTR_CORE_STORAGE_REMOVED_LOG_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfctr {

class RemovedLog {
 public:
  static constexpr size_t kLeast = 1024;  // removals that are kept of any part, however few keys are left in it

  // `mark`: the table's. Nothing is kept in the first one, which nobody asks about. `left`: keys that the part has now;
  // the log keeps at most half as many removals.
  void Add(int64_t key, uint32_t mark, size_t left);
  // Forgets everything: what was removed is not known.
  void Lose(uint32_t mark);
  // Appends the keys that were removed after the end of `mark`, some of them twice. False where that is forgotten.
  bool Since(uint32_t mark, std::vector<int64_t>* keys) const;

 private:
  struct Entry {
    int64_t key;
    uint32_t mark;
  };
  void Shorten(size_t most);

  std::vector<Entry> entries_;  // in order of their marks
  uint32_t forgotten_ = 0;      // marks up to this
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_REMOVED_LOG_H_
