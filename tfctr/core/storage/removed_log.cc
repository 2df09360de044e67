#include "tfctr/core/storage/removed_log.h"

#include <algorithm>
#include <unordered_set>

namespace tfctr {

void RemovedLog::Add(int64_t key, uint32_t mark, size_t left) {
  if (mark <= 1) return;
  entries_.push_back({key, mark});
  const size_t most = std::max(kLeast, left / 2);
  if (entries_.size() > most) Shorten(most);
}

void RemovedLog::Lose(uint32_t mark) {
  std::vector<Entry>().swap(entries_);
  forgotten_ = mark;
}

bool RemovedLog::Since(uint32_t mark, std::vector<int64_t>* keys) const {
  if (mark < forgotten_) return false;
  auto at = std::upper_bound(entries_.begin(), entries_.end(), mark,
                             [](uint32_t wanted, const Entry& entry) { return wanted < entry.mark; });
  for (; at != entries_.end(); ++at) keys->push_back(at->key);
  return true;
}

// The last removal of a key says all; if that is not enough, the oldest marks go. Half of the room is free afterwards,
// so that the work is shared by as many removals.
void RemovedLog::Shorten(size_t most) {
  std::unordered_set<int64_t> seen;
  size_t to = entries_.size();
  for (size_t from = entries_.size(); from-- > 0;) {
    if (seen.insert(entries_[from].key).second) entries_[--to] = entries_[from];
  }
  if (entries_.size() - to > most / 2) {
    to = entries_.size() - most / 2;
    forgotten_ = entries_[to - 1].mark;
    while (to < entries_.size() && entries_[to].mark <= forgotten_) ++to;
  }
  entries_.erase(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(to));
}

}  // namespace tfctr
