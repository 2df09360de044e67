// Admission by exact counts: 64 stripes, each a mutex and an open-addressing table with linear probing. A count of 0 is
// an empty slot, so every int64 is a legal key; a removed key's followers move back, so there are no tombstones.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tfctr/core/storage/admission_impl.h"
#include "tfctr/core/storage/removed_log.h"
#include "tfctr/core/storage/salt.h"

namespace tfctr {
namespace {

constexpr size_t kStripes = 64;
constexpr size_t kFirstSlots = 16;
constexpr size_t kPrefetchAhead = 8;

// One stripe's table. Arrays of the parts that the configuration doesn't keep stay empty.
class CountTable {
 public:
  CountTable(uint64_t salt, const AdmissionConfig& config)
      : salt_(salt), keeps_steps_(config.last_step), keeps_times_(config.last_time), keeps_changes_(config.changes) {}

  uint64_t HashOf(int64_t key) const { return MixKey(static_cast<uint64_t>(key) ^ salt_); }

  size_t size() const { return size_; }
  size_t slots() const { return keys_.size(); }

  void Prefetch(uint64_t hash) const {
    if (keys_.empty()) return;
    const size_t slot = Home(hash);
    __builtin_prefetch(&counts_[slot], 1);
    __builtin_prefetch(&keys_[slot], 1);
  }

  // The slot of `key`, or the empty one where it would go. The table must have an empty slot.
  size_t Probe(int64_t key, uint64_t hash) const {
    size_t slot = Home(hash);
    while (counts_[slot] != 0 && keys_[slot] != key) slot = Next(slot);
    return slot;
  }

  uint32_t Count(int64_t key, uint64_t hash) const { return keys_.empty() ? 0 : counts_[Probe(key, hash)]; }

  uint32_t Add(int64_t key, uint64_t hash, uint32_t count, Now now, uint32_t mark) {
    const KeyCount old = Get(key, hash);
    const uint32_t total = SaturatingAdd(old.count, count);
    Set(KeyCount{key, total, now.step, now.time_ms, mark}, hash);
    return total;
  }

  KeyCount Get(int64_t key, uint64_t hash) const {
    if (keys_.empty()) return KeyCount{key};
    return At(Probe(key, hash));
  }

  KeyCount At(size_t slot) const {
    return KeyCount{keys_[slot], counts_[slot], keeps_steps_ ? steps_[slot] : 0, keeps_times_ ? times_[slot] : 0,
                    keeps_changes_ ? changes_[slot] : 0};
  }
  bool Holds(size_t slot) const { return counts_[slot] != 0; }
  uint32_t Change(size_t slot) const { return changes_[slot]; }

  // `entry.count` must not be 0.
  void Set(const KeyCount& entry, uint64_t hash) {
    if (5 * (size_ + 1) > 4 * keys_.size()) Resize(keys_.empty() ? kFirstSlots : keys_.size() + keys_.size() / 2);
    const size_t slot = Probe(entry.key, hash);
    if (counts_[slot] == 0) ++size_;
    Write(slot, entry);
  }

  bool Erase(int64_t key, uint64_t hash) {
    if (keys_.empty()) return false;
    size_t hole = Probe(key, hash);
    if (counts_[hole] == 0) return false;
    for (size_t slot = Next(hole); counts_[slot] != 0; slot = Next(slot)) {
      // An entry may move to the hole when the hole lies on its way from home to where it is.
      const size_t home = Home(HashOf(keys_[slot]));
      if (Distance(home, hole) > Distance(home, slot)) continue;
      Write(hole, At(slot));
      hole = slot;
    }
    counts_[hole] = 0;
    --size_;
    return true;
  }

  void Clear() { *this = Like(); }

  // Gives memory back where at most 2/5 of the slots are used: 3/5 of them are afterwards.
  void Shrink() {
    if (keys_.size() <= kFirstSlots || 5 * size_ > 2 * keys_.size()) return;
    Resize(std::max(kFirstSlots, size_ + 2 * size_ / 3));
  }

 private:
  CountTable Like() const {
    AdmissionConfig config;
    config.last_step = keeps_steps_;
    config.last_time = keeps_times_;
    config.changes = keeps_changes_;
    return CountTable(salt_, config);
  }

  // The stripe is chosen by the low bits of the hash, the slot by the high ones.
  size_t Home(uint64_t hash) const { return ScaleToRange(hash, keys_.size()); }
  size_t Next(size_t slot) const { return slot + 1 == keys_.size() ? 0 : slot + 1; }
  size_t Distance(size_t from, size_t to) const { return to >= from ? to - from : to + keys_.size() - from; }

  void Write(size_t slot, const KeyCount& entry) {
    keys_[slot] = entry.key;
    counts_[slot] = entry.count;
    if (keeps_steps_) steps_[slot] = entry.last_step;
    if (keeps_times_) times_[slot] = entry.last_time_ms;
    if (keeps_changes_) changes_[slot] = entry.change;
  }

  void Resize(size_t slots) {
    CountTable other = Like();
    other.keys_.resize(slots);
    other.counts_.resize(slots);
    if (keeps_steps_) other.steps_.resize(slots);
    if (keeps_times_) other.times_.resize(slots);
    if (keeps_changes_) other.changes_.resize(slots);
    for (size_t slot = 0; slot < keys_.size(); ++slot) {
      if (counts_[slot] == 0) continue;
      const KeyCount entry = At(slot);
      other.Write(other.Probe(entry.key, HashOf(entry.key)), entry);
    }
    other.size_ = size_;
    *this = std::move(other);
  }

  uint64_t salt_;
  bool keeps_steps_;
  bool keeps_times_;
  bool keeps_changes_;
  size_t size_ = 0;
  std::vector<int64_t> keys_;
  std::vector<uint32_t> counts_;
  std::vector<int64_t> steps_;
  std::vector<int64_t> times_;
  std::vector<uint32_t> changes_;
};

struct alignas(64) Stripe {
  Stripe(uint64_t salt, const AdmissionConfig& config) : table(salt, config) {}
  mutable std::mutex mutex;
  CountTable table;
  RemovedLog removed;  // what EraseIf took
};

class CounterAdmission : public Admission {
 public:
  explicit CounterAdmission(const AdmissionConfig& config) : Admission(config) {
    stripes_.reserve(kStripes);
    for (size_t i = 0; i < kStripes; ++i) {
      stripes_.push_back(std::make_unique<Stripe>(salt_, config));
    }
  }

  void Add(const int64_t* keys, const uint32_t* counts, size_t n, Now now, uint8_t* admitted,
           uint32_t* totals) override {
    ForEachByStripe(keys, n, [&](Stripe& stripe, size_t i, uint64_t hash) {
      CountTable& table = stripe.table;
      totals[i] = counts[i] == 0 ? table.Count(keys[i], hash) : table.Add(keys[i], hash, counts[i], now, mark());
      admitted[i] = totals[i] >= config().min_count;
    });
  }

  void Forget(const int64_t* keys, size_t n) override {
    ForEachByStripe(
        keys, n, [&](Stripe& stripe, size_t i, uint64_t hash) { stripe.table.Erase(keys[i], hash); },
        [](CountTable& table) { table.Shrink(); });
  }

  uint32_t Count(int64_t key) const override {
    const uint64_t hash = HashOf(key);
    const Stripe& stripe = *stripes_[hash % kStripes];
    std::lock_guard<std::mutex> lock(stripe.mutex);
    return stripe.table.Count(key, hash);
  }

  uint64_t size() const override { return size_.load(std::memory_order_relaxed); }
  uint64_t bytes() const override {
    return sizeof(*this) + kStripes * sizeof(Stripe) + slots_.load(std::memory_order_relaxed) * SlotBytes();
  }
  // Slots are filled to 4/5 at most.
  uint64_t bytes_per_key() const override { return SlotBytes() * 5 / 4; }

  size_t parts() const override { return kStripes; }
  void Visit(size_t part, const std::function<void(const KeyCount&)>& visit) const override {
    const Stripe& stripe = *stripes_[part];
    std::lock_guard<std::mutex> lock(stripe.mutex);
    for (size_t slot = 0; slot < stripe.table.slots(); ++slot) {
      if (stripe.table.Holds(slot)) visit(stripe.table.At(slot));
    }
  }

  size_t EraseIf(const int64_t* keys, size_t n, const std::function<bool(const KeyCount&)>& condemned) override {
    size_t erased = 0;
    ForEachByStripe(
        keys, n,
        [&](Stripe& stripe, size_t i, uint64_t hash) {
          const KeyCount entry = stripe.table.Get(keys[i], hash);
          if (entry.count == 0 || !condemned(entry)) return;
          erased += stripe.table.Erase(keys[i], hash);
          if (config().changes) stripe.removed.Add(keys[i], mark(), stripe.table.size());
        },
        [](CountTable& table) { table.Shrink(); });
    return erased;
  }

  void Put(const KeyCount* counts, size_t n) override {
    std::vector<int64_t> keys(n);
    for (size_t i = 0; i < n; ++i) keys[i] = counts[i].key;
    ForEachByStripe(keys.data(), n, [&](Stripe& stripe, size_t i, uint64_t hash) {
      if (counts[i].count == 0) return;
      KeyCount entry = counts[i];
      entry.change = mark();
      stripe.table.Set(entry, hash);
    });
  }

  void Clear() override {
    for (const auto& stripe : stripes_) {
      std::lock_guard<std::mutex> lock(stripe->mutex);
      Tracked(stripe->table, [&] { stripe->table.Clear(); });
      stripe->removed.Lose(mark());
    }
  }

  bool VisitChanged(size_t part, uint32_t mark, const std::function<void(const KeyCount&)>& visit,
                    std::vector<int64_t>* removed) const override {
    const Stripe& stripe = *stripes_[part];
    std::lock_guard<std::mutex> lock(stripe.mutex);
    if (!config().changes || !stripe.removed.Since(mark, removed)) return false;
    for (size_t slot = 0; slot < stripe.table.slots(); ++slot) {
      if (stripe.table.Holds(slot) && stripe.table.Change(slot) > mark) visit(stripe.table.At(slot));
    }
    return true;
  }

 private:
  uint64_t SlotBytes() const {
    return sizeof(int64_t) + sizeof(uint32_t) + (config().last_step ? sizeof(int64_t) : 0) +
           (config().last_time ? sizeof(int64_t) : 0) + (config().changes ? sizeof(uint32_t) : 0);
  }

  // Calls change() and keeps the totals over all stripes right.
  template <typename Change>
  void Tracked(const CountTable& table, const Change& change) {
    const uint64_t size = table.size();
    const uint64_t slots = table.slots();
    change();
    size_.fetch_add(table.size() - size, std::memory_order_relaxed);
    slots_.fetch_add(table.slots() - slots, std::memory_order_relaxed);
  }

  // each(stripe, index of the key, hash) for every key, stripe by stripe in the order of the keys, each stripe's mutex
  // taken once; then done(table).
  template <typename Each, typename Done>
  void ForEachByStripe(const int64_t* keys, size_t n, const Each& each, const Done& done) {
    std::vector<uint64_t> hashes(n);
    std::array<size_t, kStripes + 1> starts{};
    for (size_t i = 0; i < n; ++i) {
      hashes[i] = HashOf(keys[i]);
      ++starts[hashes[i] % kStripes + 1];
    }
    for (size_t s = 0; s < kStripes; ++s) starts[s + 1] += starts[s];
    std::vector<size_t> order(n);
    std::array<size_t, kStripes + 1> next = starts;
    for (size_t i = 0; i < n; ++i) order[next[hashes[i] % kStripes]++] = i;
    for (size_t s = 0; s < kStripes; ++s) {
      if (starts[s] == starts[s + 1]) continue;
      CountTable& table = stripes_[s]->table;
      std::lock_guard<std::mutex> lock(stripes_[s]->mutex);
      Tracked(table, [&] {
        for (size_t k = starts[s]; k < starts[s + 1]; ++k) {
          if (k + kPrefetchAhead < starts[s + 1]) table.Prefetch(hashes[order[k + kPrefetchAhead]]);
          each(*stripes_[s], order[k], hashes[order[k]]);
        }
        done(table);
      });
    }
  }
  template <typename Each>
  void ForEachByStripe(const int64_t* keys, size_t n, const Each& each) {
    ForEachByStripe(keys, n, each, [](CountTable&) {});
  }

  uint64_t HashOf(int64_t key) const { return MixKey(static_cast<uint64_t>(key) ^ salt_); }

  const uint64_t salt_ = NewSalt();
  std::vector<std::unique_ptr<Stripe>> stripes_;
  std::atomic<uint64_t> size_{0};
  std::atomic<uint64_t> slots_{0};
};

}  // namespace

Result<std::shared_ptr<Admission>> CreateCounterAdmission(const AdmissionConfig& config) {
  return std::shared_ptr<Admission>(std::make_shared<CounterAdmission>(config));
}

}  // namespace tfctr
