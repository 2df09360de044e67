// A shared lock whose exclusive side does not starve: once someone waits for it exclusively, later shared requests
// queue behind. A thread must not take it shared twice. Thread-safety: that's its purpose. Cost: an uncontended shared
// lock and unlock are two atomic operations.
#ifndef TFCTR_CORE_STORAGE_UPDATE_GATE_H_
#define TFCTR_CORE_STORAGE_UPDATE_GATE_H_

#include <pthread.h>

#include <condition_variable>
#include <mutex>

namespace tfctr {

// For std::shared_lock and std::unique_lock. (std::shared_mutex prefers readers in glibc.)
class UpdateGate {
 public:
  UpdateGate() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~UpdateGate() { pthread_rwlock_destroy(&lock_); }
  UpdateGate(const UpdateGate&) = delete;
  UpdateGate& operator=(const UpdateGate&) = delete;

  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }
  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

// A mutex that may be unlocked by another thread than the one that locked it.
class HandoverMutex {
 public:
  void lock() {
    std::unique_lock<std::mutex> lock(mutex_);
    free_.wait(lock, [this] { return !taken_; });
    taken_ = true;
  }
  void unlock() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      taken_ = false;
    }
    free_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_UPDATE_GATE_H_
