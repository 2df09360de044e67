#include "tfctr/core/storage/hash_plan.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "tfctr/core/storage/salt.h"

namespace tfctr {
namespace {

// Keys a home has on average: 13.1 bytes of index a key. 5.6 would save 1.6 bytes and let one key in ten overflow
// instead of one in thirty (measured: finding is 10 to 20 % slower).
constexpr double kKeysPerHome = 4.9;
// A key too far from its home (HashLine::kMaxWalk) means another salt: with random keys the farthest of 2^32 is 7 lines
// away. The first salts are the same for all files, so that files are reproducible and two of them can be merged by
// streams; whoever built keys against all of them meets random ones.
constexpr uint64_t kSalts[] = {0x243f6a8885a308d3ull, 0x13198a2e03707344ull, 0xa4093822299f31d0ull};
constexpr int kMaxAttempts = 16;
constexpr uint64_t kBucketEntries = 4096;  // are sorted in the first-level cache's neighbourhood
constexpr int kMaxBucketBits = 16;

struct Entry {
  uint64_t hash;
  uint32_t at;  // place in the keys given
};

class SortedKeys {
 public:
  SortedKeys(const std::vector<int64_t>& keys, uint64_t salt) : entries_(new Entry[keys.size()]) {
    int bits = 0;
    while (bits < kMaxBucketBits && (keys.size() >> bits) > kBucketEntries) ++bits;
    const size_t buckets = size_t{1} << bits;
    const auto bucket_of = [bits](uint64_t hash) { return bits == 0 ? 0 : hash >> (64 - bits); };
    std::vector<size_t> next(buckets + 1);
    for (const int64_t key : keys) ++next[bucket_of(HashOfKey(key, salt)) + 1];
    for (size_t b = 0; b < buckets; ++b) next[b + 1] += next[b];
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint64_t hash = HashOfKey(keys[i], salt);
      entries_[next[bucket_of(hash)]++] = {hash, static_cast<uint32_t>(i)};
    }
    // next[b] is the end of bucket b now.
    for (size_t b = 0, begin = 0; b < buckets; begin = next[b++]) {
      std::sort(&entries_[begin], &entries_[next[b]], [](const Entry& a, const Entry& b) { return a.hash < b.hash; });
    }
  }
  const Entry& operator[](size_t i) const { return entries_[i]; }

 private:
  std::unique_ptr<Entry[]> entries_;
};

// False when some key would lie too far from its home.
bool FillLines(const std::vector<int64_t>& keys, const SortedKeys& sorted, HashPlan* plan) {
  const size_t size = keys.size();
  plan->homes = std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(size) / kKeysPerHome) + 1);
  plan->lines.assign(plan->homes + HashLine::kMaxWalk, HashLine{});
  size_t next = 0;
  uint64_t l = 0;
  for (; l < plan->homes || next < size; ++l) {
    HashLine& line = plan->lines[l];
    line.first = static_cast<uint32_t>(next);
    uint64_t home = 0;
    const auto belongs = [&] { return next < size && (home = HomeOfHash(sorted[next].hash, plan->homes)) <= l; };
    while (line.count < HashLine::kKeys && belongs()) {
      line.keys[line.count++] = keys[sorted[next].at];
      ++next;
    }
    if (!belongs()) continue;
    if (l + 1 - home > HashLine::kMaxWalk || l + 1 == plan->lines.size()) return false;
    for (size_t on = next; on < size && HomeOfHash(sorted[on].hash, plan->homes) <= l; ++on) {
      line.overflow |= OverflowBit(sorted[on].hash);
    }
  }
  plan->lines.resize(l);
  return true;
}

}  // namespace

Result<HashPlan> PlanHashFile(const std::string& table, const std::vector<int64_t>& keys) {
  HashPlan plan;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    plan.salt = static_cast<size_t>(attempt) < std::size(kSalts) ? kSalts[attempt] : NewSalt();
    const SortedKeys sorted(keys, plan.salt);
    for (size_t i = 1; i < keys.size(); ++i) {
      if (sorted[i].hash != sorted[i - 1].hash) continue;
      const auto [first, second] = std::minmax(sorted[i - 1].at, sorted[i].at);
      return Status::Invalid("table '" + table + "': key " + std::to_string(keys[first]) + " is given twice (rows " +
                             std::to_string(first) + " and " + std::to_string(second) + ")");
    }
    if (!FillLines(keys, sorted, &plan)) continue;
    plan.numbers.resize(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) plan.numbers[sorted[i].at] = static_cast<uint32_t>(i);
    return plan;
  }
  return Status::Invalid("table '" + table + "': no salt spreads its " + std::to_string(keys.size()) + " keys");
}

}  // namespace tfctr
