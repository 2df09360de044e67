// From ids to row numbers, where they are none yet: the step `find` of hash files, and overlays. Compiled once per
// instruction set from number_impl.h; all give the same numbers.
//
// Thread-safety: pure functions. Cost: of a hash file a cache miss a key, and its row's, both overlapped over a group
// of keys; an overlay takes a bit of its bitmap per key, and more only for keys that it may hold.
#ifndef TFCTR_CORE_LOOKUP_NUMBER_KERNELS_H_
#define TFCTR_CORE_LOOKUP_NUMBER_KERNELS_H_

#include <cstdint>

#include "tfctr/core/storage/isa.h"
#include "tfctr/core/storage/overlay_index.h"

namespace tfctr {

// Keys of a hash file (`index`), row ids of a table file with an overlay, or keys of a hash file with an overlay.
struct NumberTask {
  // What stands for an id that is in no table: above every row number, and dropped by no prune step.
  static constexpr int64_t kOutside = INT64_MAX;

  int64_t* ids = nullptr;  // row numbers take their place
  int64_t n = 0;
  const HashIndex* index = nullptr;
  const OverlayIndex* overlay = nullptr;
  bool drop_negative = false;      // of a hash file: negative keys become -1
  int64_t base_rows = 0;           // of a table file: ids outside of [0, base_rows) are in no row and stay so
  int64_t wrap = 0;                // of a table file: negative ids get this added if that leads into the table
  const uint8_t* table = nullptr;  // of a hash file: where its rows lie, to be fetched;
  int64_t row_bytes = 0;           // from one row to the next; 0: fetch none
  int64_t* missing = nullptr;      // of a hash file: gets the keys added that it does not have; nullptr: not counted
};

using NumberKernel = void (*)(const NumberTask& task);

NumberKernel NumberKernelFor(Isa isa);

}  // namespace tfctr

#endif  // TFCTR_CORE_LOOKUP_NUMBER_KERNELS_H_
