// How one row of an embedding table lies in memory:
//
//   float    value[dim]                     at 0
//   float    slot 0[width], slot 1[width], ...   in the order of the specs, right behind
//   (padding to 8 bytes where last_step or last_time follow)
//   int64_t  last_step                      only where the table's configuration asks for it
//   int64_t  last_time_ms                   only where it asks for it
//   uint32_t frequency                      only where it asks for it
//   uint32_t change                         only where it asks for it: the mark after which the row last changed
//   (padding to 4 bytes, or to 8 where an int64 is present)
//
// A row is handed around as the `float*` of its value. Offsets are in bytes from there. Rows are aligned to 4 bytes, to
// 8 where an int64 is present.
//
// Thread-safety: immutable. Cost: offsets are computed once, by Make. Floats and metadata of a row that other threads
// can reach are read and written through relaxed.h only.
#ifndef TFCTR_CORE_STORAGE_ROW_LAYOUT_H_
#define TFCTR_CORE_STORAGE_ROW_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tfctr/core/storage/status.h"

namespace tfctr {

struct SlotSpec {
  std::string name;  // "accumulator"; the name of its tensor in a checkpoint
  int width = 0;     // floats: dim, or 1 for a slot per row
  float initial = 0.0f;

  bool operator==(const SlotSpec& other) const {
    return name == other.name && width == other.width && initial == other.initial;
  }
};

class RowLayout {
 public:
  static constexpr int kMaxWidth = 1 << 20;  // floats of a value or a slot
  static constexpr size_t kNone = static_cast<size_t>(-1);

  RowLayout() = default;

  // kInvalid, naming the dimension or the slot, for a width outside 1..kMaxWidth or two slots of one name.
  static Result<RowLayout> Make(int dim, std::vector<SlotSpec> slots, bool frequency, bool last_step, bool last_time,
                                bool change = false);

  int dim() const { return dim_; }
  const std::vector<SlotSpec>& slots() const { return slots_; }
  bool has_frequency() const { return frequency_ != kNone; }
  bool has_last_step() const { return last_step_ != kNone; }
  bool has_last_time() const { return last_time_ != kNone; }
  bool has_change() const { return change_ != kNone; }

  size_t stride() const { return stride_; }                         // bytes of a row, padding included
  size_t floats() const { return floats_; }                         // of the value and all slots, which lie together
  size_t slot_floats(size_t slot) const { return slot_at_[slot]; }  // where a slot begins, in floats
  size_t frequency_offset() const { return frequency_; }            // bytes, or kNone
  size_t last_step_offset() const { return last_step_; }            // bytes, or kNone
  size_t last_time_offset() const { return last_time_; }            // bytes, or kNone
  size_t change_offset() const { return change_; }                  // bytes, or kNone

  float* slot(float* row, size_t slot) const { return row + slot_at_[slot]; }
  const float* slot(const float* row, size_t slot) const { return row + slot_at_[slot]; }

  // The counter, step, time or change of a row. Only where the layout has it.
  uint32_t* frequency(float* row) const { return At<uint32_t>(row, frequency_); }
  const uint32_t* frequency(const float* row) const { return At<uint32_t>(row, frequency_); }
  int64_t* last_step(float* row) const { return At<int64_t>(row, last_step_); }
  const int64_t* last_step(const float* row) const { return At<int64_t>(row, last_step_); }
  int64_t* last_time_ms(float* row) const { return At<int64_t>(row, last_time_); }
  const int64_t* last_time_ms(const float* row) const { return At<int64_t>(row, last_time_); }
  uint32_t* change(float* row) const { return At<uint32_t>(row, change_); }
  const uint32_t* change(const float* row) const { return At<uint32_t>(row, change_); }

  bool operator==(const RowLayout& other) const {
    return dim_ == other.dim_ && slots_ == other.slots_ && frequency_ == other.frequency_ &&
           last_step_ == other.last_step_ && last_time_ == other.last_time_ && change_ == other.change_;
  }
  bool operator!=(const RowLayout& other) const { return !(*this == other); }

 private:
  template <typename T>
  static T* At(float* row, size_t offset) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(row) + offset);
  }
  template <typename T>
  static const T* At(const float* row, size_t offset) {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(row) + offset);
  }

  int dim_ = 0;
  std::vector<SlotSpec> slots_;
  std::vector<size_t> slot_at_;
  size_t floats_ = 0;
  size_t stride_ = 0;
  size_t frequency_ = kNone;
  size_t last_step_ = kNone;
  size_t last_time_ = kNone;
  size_t change_ = kNone;
};

}  // namespace tfctr

#endif  // TFCTR_CORE_STORAGE_ROW_LAYOUT_H_
