#include "tfctr/core/storage/table_space.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "tfctr/core/storage/metadata_fields.h"
#include "tfctr/core/storage/page_memory.h"

namespace tfctr {
namespace {

constexpr uint64_t kLeastRoom = uint64_t{64} << 20;
constexpr uint64_t kCopyBytes = uint64_t{8} << 20;

// One entry per (file, way to keep it); its mutex is held while the range is made.
struct Slot {
  std::mutex mutex;
  std::weak_ptr<TableSpace> space;
};
using Key = std::pair<FileId, TableMemory>;

struct Registry {
  std::mutex mutex;
  std::map<Key, std::shared_ptr<Slot>> slots;
};

Registry& Spaces() {
  static Registry* const registry = new Registry();  // never destroyed: threads may outlive static destruction
  return *registry;
}

// Fresh addresses in place of what lies there; keeps the range reserved.
bool Reserve(void* at, uint64_t bytes) {
  return ::mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// The pages of a file mapping, mapped a second time at `to`.
bool MapAgain(const uint8_t* from, uint64_t bytes, uint8_t* to) {
  return ::mremap(const_cast<uint8_t*>(from), 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
}

// Copies into pages that are ours and writable. The pages of the file leave our page table again: they would count
// twice.
void CopyOut(const uint8_t* from, uint64_t bytes, uint8_t* to) {
  for (uint64_t at = 0; at < bytes; at += kCopyBytes) {
    const uint64_t n = std::min(kCopyBytes, bytes - at);
    std::memcpy(to + at, from + at, n);
    (void)::madvise(const_cast<uint8_t*>(from + at), RoundUp(n, kPageBytes), MADV_DONTNEED);
  }
}

}  // namespace

Result<std::shared_ptr<TableSpace>> TableSpace::Get(const Container& base, TableMemory memory, uint64_t room) {
  std::shared_ptr<Slot> slot;
  {
    Registry& registry = Spaces();
    std::lock_guard<std::mutex> lock(registry.mutex);
    for (auto it = registry.slots.begin(); it != registry.slots.end();) {  // forget what nobody uses any more
      it = it->second.use_count() == 1 && it->second->space.expired() ? registry.slots.erase(it) : std::next(it);
    }
    std::shared_ptr<Slot>& entry = registry.slots[Key(base.id(), memory)];
    if (entry == nullptr) entry = std::make_shared<Slot>();
    slot = entry;
  }
  std::lock_guard<std::mutex> lock(slot->mutex);
  if (std::shared_ptr<TableSpace> space = slot->space.lock()) {
    if (space->total_ - space->base_end_ >= room) return space;
  }
  Result<std::shared_ptr<TableSpace>> made = Make(base, memory, room);
  if (made.ok()) slot->space = made.value();
  return made;
}

Result<std::shared_ptr<TableSpace>> TableSpace::Make(const Container& base, TableMemory memory, uint64_t room) {
  std::shared_ptr<TableSpace> space(new TableSpace());
  const bool huge = memory == TableMemory::kHugePages;
  space->path_ = base.path();
  space->memory_ = memory;
  space->base_bytes_ = base.data_bytes();
  const uint64_t base_end = RoundUp(huge ? std::max<uint64_t>(base.data_bytes(), 1) : base.file_bytes(), kPageBytes);
  const uint64_t total = base_end + RoundUp(std::max({room, kLeastRoom, 2 * base_end}), kPageBytes);
  const uint64_t slack = huge ? kHugePage : 0;
  void* const range = ::mmap(nullptr, total + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return Status::NoSpace("no addresses for table '" + base.path() + "': " + strerror(errno));
  uint8_t* data = static_cast<uint8_t*>(range);
  if (huge) {
    data += (kHugePage - reinterpret_cast<uintptr_t>(data) % kHugePage) % kHugePage;
    if (data != range) ::munmap(range, static_cast<uint64_t>(data - static_cast<uint8_t*>(range)));
    const uint64_t behind = static_cast<uint64_t>(static_cast<uint8_t*>(range) + total + slack - (data + total));
    if (behind != 0) ::munmap(data + total, behind);
  }
  space->data_ = data;
  space->base_end_ = base_end;
  space->total_ = total;
  if (huge) {
    TFCTR_RETURN_IF_ERROR(space->CopyBase(base));
  } else if (!MapAgain(base.data(), base.file_bytes(), data)) {
    return ErrnoStatus("cannot map", base.path(), errno);
  }
  return space;
}

Status TableSpace::CopyBase(const Container& base) {
  if (::mprotect(data_, base_end_, PROT_READ | PROT_WRITE) != 0) {
    return Status::NoSpace("no memory for a copy of '" + path_ + "' (" + std::to_string(base_end_) +
                           " bytes): " + strerror(errno));
  }
  (void)::madvise(data_, base_end_, MADV_HUGEPAGE);  // advice: small pages do as well where it is refused
  CopyOut(base.data(), base.data_bytes(), data_);
  (void)::mprotect(data_, base_end_, PROT_READ);
  return Status::Ok();
}

TableSpace::~TableSpace() {
  if (data_ != nullptr) ::munmap(data_, total_);
}

Result<uint64_t> TableSpace::Place(const Container& overlay, uint64_t bytes, uint64_t row_bytes) {
  // A slab without rows has a place too: two at one offset would be one entry, and the first to go would unmap the
  // other.
  const uint64_t mapped = RoundUp(std::max<uint64_t>(bytes, 1), kPageBytes);
  const uint64_t unit = std::lcm(kPageBytes, row_bytes);
  uint64_t offset = RoundUp(base_end_, unit);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [begin, end] : places_) {
      if (offset + mapped <= begin) break;
      offset = RoundUp(std::max(offset, end), unit);
    }
    if (offset > total_ || mapped > total_ - offset) return uint64_t{0};
    places_[offset] = offset + mapped;
  }
  const Status put = PutSlab(overlay, bytes, offset, mapped);
  if (put.ok()) return offset;
  Release(offset);
  return put;
}

Status TableSpace::PutSlab(const Container& overlay, uint64_t bytes, uint64_t offset, uint64_t mapped) {
  uint8_t* const to = data_ + offset;
  if (bytes == 0) return Status::Ok();
  if (memory_ == TableMemory::kMapped) {
    return MapAgain(overlay.data(), mapped, to) ? Status::Ok() : ErrnoStatus("cannot map", overlay.path(), errno);
  }
  if (::mprotect(to, mapped, PROT_READ | PROT_WRITE) != 0) {
    return Status::NoSpace("no memory for a copy of '" + overlay.path() + "': " + strerror(errno));
  }
  (void)::madvise(to, mapped, MADV_HUGEPAGE);
  CopyOut(overlay.data(), bytes, to);
  (void)::mprotect(to, mapped, PROT_READ);
  return Status::Ok();
}

void TableSpace::Release(uint64_t offset) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto place = places_.find(offset);
  // Addresses that could not be emptied are not used again.
  if (place->second == offset || Reserve(data_ + offset, place->second - offset)) places_.erase(place);
}

std::vector<TableSpace::Stats> TableSpace::AllStats() {
  std::vector<std::shared_ptr<Slot>> slots;
  {
    Registry& registry = Spaces();
    std::lock_guard<std::mutex> lock(registry.mutex);
    for (const auto& [key, slot] : registry.slots) slots.push_back(slot);
  }
  std::vector<Stats> all;
  for (const std::shared_ptr<Slot>& slot : slots) {
    std::shared_ptr<TableSpace> space;
    {
      std::lock_guard<std::mutex> lock(slot->mutex);
      space = slot->space.lock();
    }
    if (space == nullptr) continue;
    Stats stats{space->path_, space->memory_, space->base_bytes_, 0, 0, static_cast<int64_t>(space.use_count()) - 1};
    std::lock_guard<std::mutex> lock(space->mutex_);
    for (const auto& [begin, end] : space->places_) {
      ++stats.overlays;
      stats.overlay_bytes += end - begin;
    }
    all.push_back(std::move(stats));
  }
  return all;
}

}  // namespace tfctr
