// Deferred freeing for lock-free readers. A reader enters before it loads a shared pointer and leaves when it is done
// with what it points to. A writer first unlinks an object, then asks for a tag; the object may be freed once no reader
// is left that entered before the tag was given.
//
// Thread-safety: that's its purpose. Cost: entering and leaving are one atomic operation each on a cache line that is,
// but for chance, the thread's own. Oldest() looks at all of them.
#ifndef TFCTR_CORE_STORAGE_EPOCH_H_
#define TFCTR_CORE_STORAGE_EPOCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tfctr {

class Epochs {
 public:
  static constexpr size_t kReaders = 128;  // at a time; more wait for one to leave

  Epochs() = default;
  Epochs(const Epochs&) = delete;
  Epochs& operator=(const Epochs&) = delete;

  // Returns what Leave needs. One thread may be inside several times.
  size_t Enter();
  void Leave(size_t place) { places_[place].since.store(0, std::memory_order_release); }

  // Call after the object was unlinked.
  uint64_t Tag() { return now_.fetch_add(1, std::memory_order_acq_rel); }
  // Objects with a smaller tag may be freed.
  uint64_t Oldest();

 private:
  struct alignas(64) Place {
    std::atomic<uint64_t> since{0};  // the epoch in which the reader entered; 0 = nobody
  };
  Place places_[kReaders];
  alignas(64) std::atomic<uint64_t> now_{1};
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_EPOCH_H_
