// A random number that goes into the hash of every hash table of its own.
//
// Two reasons. Nobody can choose keys that collide. And no table's order is another one's: keys that come in the order
// of their homes, as they do when one table is filled from another or from a checkpoint of itself, pile up at the front
// of a smaller array, and each probe walks along the pile.
// Thread-safety: may be called from any thread. Cost: microseconds.
#ifndef TFCTR_CORE_STORAGE_SALT_H_
#define TFCTR_CORE_STORAGE_SALT_H_

#include <cstdint>
#include <random>

namespace tfctr {

inline uint64_t NewSalt() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) ^ device();
}

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_SALT_H_
