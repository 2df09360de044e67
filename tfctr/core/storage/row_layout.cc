#include "tfctr/core/storage/row_layout.h"

namespace tfctr {
namespace {

constexpr size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Result<RowLayout> RowLayout::Make(int dim, std::vector<SlotSpec> slots, bool frequency, bool last_step, bool last_time,
                                  bool change) {
  if (dim < 1 || dim > kMaxWidth) {
    return Status::Invalid("an embedding dimension of " + std::to_string(dim) + "; expected 1 to " +
                           std::to_string(kMaxWidth));
  }
  RowLayout layout;
  layout.dim_ = dim;
  layout.floats_ = static_cast<size_t>(dim);
  for (size_t i = 0; i < slots.size(); ++i) {
    const SlotSpec& slot = slots[i];
    if (slot.width < 1 || slot.width > kMaxWidth) {
      return Status::Invalid("slot '" + slot.name + "' is " + std::to_string(slot.width) +
                             " floats wide; expected 1 to " + std::to_string(kMaxWidth));
    }
    for (size_t j = 0; j < i; ++j) {
      if (slots[j].name == slot.name) return Status::Invalid("two slots are called '" + slot.name + "'");
    }
    layout.slot_at_.push_back(layout.floats_);
    layout.floats_ += static_cast<size_t>(slot.width);
  }
  layout.slots_ = std::move(slots);
  size_t at = layout.floats_ * sizeof(float);
  const size_t align = last_step || last_time ? sizeof(int64_t) : sizeof(float);
  at = RoundUp(at, align);
  if (last_step) {
    layout.last_step_ = at;
    at += sizeof(int64_t);
  }
  if (last_time) {
    layout.last_time_ = at;
    at += sizeof(int64_t);
  }
  if (frequency) {
    layout.frequency_ = at;
    at += sizeof(uint32_t);
  }
  if (change) {
    layout.change_ = at;
    at += sizeof(uint32_t);
  }
  layout.stride_ = RoundUp(at, align);
  return layout;
}

}  // namespace tfctr
