// Admission by a counting Bloom filter: `groups` arrays of saturating cells; a key has one cell in each, and its count
// is the least of them. No key is stored. Cells only grow, so a count is never too small.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "tfctr/core/storage/admission_impl.h"
#include "tfctr/core/storage/page_memory.h"

namespace tfctr {
namespace {

constexpr uint64_t kMagic = 0x314d4f4f4c425654ULL;  // "TVBLOOM1", little-endian
constexpr int64_t kNoEpoch = std::numeric_limits<int64_t>::min();
constexpr int kMaxGroups = 64;
constexpr size_t kPrefetchAhead = 4;

// What precedes the cells in the saved state.
struct StateHeader {
  uint64_t magic;
  uint32_t counter_bits;
  uint32_t groups;
  uint64_t cells_per_group;
  int64_t epoch;  // step // reset_every_steps of the last count, kNoEpoch before the first
};
static_assert(sizeof(StateHeader) == 32);

struct Geometry {
  uint32_t groups;
  uint64_t cells_per_group;
};

// The usual optimum: n ln(1/p) / ln(2)^2 cells, log2(1/p) hash functions, each with its own part of the cells.
Geometry GeometryOf(const AdmissionConfig& config) {
  const double rate = config.false_positive_rate;
  const double cells = std::ceil(static_cast<double>(config.expected_keys) * -std::log(rate) / (M_LN2 * M_LN2));
  const double groups = std::clamp(std::ceil(-std::log2(rate)), 1.0, static_cast<double>(kMaxGroups));
  return {static_cast<uint32_t>(groups), static_cast<uint64_t>(std::max(1.0, std::ceil(cells / groups)))};
}

std::string Describe(uint32_t groups, uint64_t cells, uint32_t bits) {
  return std::to_string(groups) + " x " + std::to_string(cells) + " cells of " + std::to_string(bits) + " bits";
}

struct Unmap {
  size_t bytes = 0;
  void operator()(void* memory) const { UnmapMemory(memory, bytes); }
};

template <typename Cell>
class BloomAdmission : public Admission {
 public:
  BloomAdmission(const AdmissionConfig& config, Geometry geometry, void* zeroed)
      : Admission(config), geometry_(geometry), cells_(static_cast<Cell*>(zeroed), Unmap{CellBytes()}) {}

  void Add(const int64_t* keys, const uint32_t* counts, size_t n, Now now, uint8_t* admitted,
           uint32_t* totals) override {
    const std::shared_lock<std::shared_mutex> lock = LockInEpoch(now.step);
    AddCounts(n, [&](size_t i) { return KeyCount{keys[i], counts[i]}; });
    for (size_t i = 0; i < n; ++i) {
      if (i + kPrefetchAhead < n) Prefetch(keys[i + kPrefetchAhead]);
      totals[i] = Least(keys[i]);
      admitted[i] = totals[i] >= config().min_count;
    }
  }

  void Forget(const int64_t*, size_t) override {}

  uint32_t Count(int64_t key) const override {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    return Least(key);
  }

  uint64_t size() const override { return 0; }
  uint64_t bytes() const override { return sizeof(*this) + CellBytes(); }
  uint64_t bytes_per_key() const override { return 0; }

  // A filter has no keys to set counts of: they are added to what it holds.
  void Put(const KeyCount* counts, size_t n) override {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    AddCounts(n, [&](size_t i) { return counts[i]; });
  }

  void Clear() override {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    std::memset(cells_.get(), 0, CellBytes());
    epoch_ = kNoEpoch;
    Changed();
  }

  bool ChangedSince(uint32_t mark) const override { return changed_.load(std::memory_order_relaxed) > mark; }

  uint64_t state_bytes() const override { return sizeof(StateHeader) + CellBytes(); }

  void ReadState(uint64_t offset, uint64_t size, uint8_t* out) const override {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    const StateHeader header{kMagic, 8 * sizeof(Cell), geometry_.groups, geometry_.cells_per_group, epoch_};
    const auto* bytes = reinterpret_cast<const uint8_t*>(&header);
    for (; size > 0 && offset < sizeof(header); ++offset, --size) *out++ = bytes[offset];
    offset -= std::min<uint64_t>(offset, sizeof(header));
    while (size > 0) {  // cells may grow meanwhile: each is read whole
      const Cell cell = __atomic_load_n(&cells_.get()[offset / sizeof(Cell)], __ATOMIC_RELAXED);
      const uint64_t begin = offset % sizeof(Cell);
      const uint64_t take = std::min<uint64_t>(size, sizeof(Cell) - begin);
      std::memcpy(out, reinterpret_cast<const uint8_t*>(&cell) + begin, take);
      out += take;
      offset += take;
      size -= take;
    }
  }

  Status WriteState(uint64_t offset, uint64_t size, const uint8_t* bytes) override {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    if (offset == 0) {
      StateHeader header;
      if (size < sizeof(header)) return Status::Invalid("BloomAdmission: a saved filter without its header");
      std::memcpy(&header, bytes, sizeof(header));
      TFCTR_RETURN_IF_ERROR(CheckHeader(header));
      epoch_ = header.epoch;
      offset += sizeof(header);
      size -= sizeof(header);
      bytes += sizeof(header);
    }
    offset -= sizeof(StateHeader);
    if (offset > CellBytes() || size > CellBytes() - offset) {
      return Status::Invalid("BloomAdmission: the saved filter is longer than " + std::to_string(CellBytes()) +
                             " bytes of cells");
    }
    std::memcpy(reinterpret_cast<uint8_t*>(cells_.get()) + offset, bytes, size);
    Changed();
    return Status::Ok();
  }

 private:
  uint64_t CellBytes() const { return geometry_.groups * geometry_.cells_per_group * sizeof(Cell); }

  Status CheckHeader(const StateHeader& header) const {
    if (header.magic != kMagic) return Status::Invalid("BloomAdmission: not the state of a filter of this format");
    if (header.counter_bits == 8 * sizeof(Cell) && header.groups == geometry_.groups &&
        header.cells_per_group == geometry_.cells_per_group) {
      return Status::Ok();
    }
    return Status::Invalid("BloomAdmission: the saved filter has " +
                           Describe(header.groups, header.cells_per_group, header.counter_bits) + ", this one has " +
                           Describe(geometry_.groups, geometry_.cells_per_group, 8 * sizeof(Cell)) +
                           " (expected_keys, false_positive_rate and counter_bits must be equal)");
  }

  // The cell of a key in every group: two hashes, combined linearly.
  template <typename Each>
  void ForEachCell(int64_t key, const Each& each) const {
    uint64_t hash = MixKey(static_cast<uint64_t>(key));
    const uint64_t stride = MixKey(hash ^ 0x9e3779b97f4a7c15ULL) | 1;
    Cell* group = cells_.get();
    for (uint32_t g = 0; g < geometry_.groups; ++g) {
      each(group + ScaleToRange(hash, geometry_.cells_per_group));
      hash += stride;
      group += geometry_.cells_per_group;
    }
  }

  void Prefetch(int64_t key) const {
    ForEachCell(key, [](Cell* cell) { __builtin_prefetch(cell, 1); });
  }

  uint32_t Least(int64_t key) const {
    Cell least = std::numeric_limits<Cell>::max();
    ForEachCell(key, [&](Cell* cell) { least = std::min(least, __atomic_load_n(cell, __ATOMIC_RELAXED)); });
    return least;
  }

  template <typename At>
  void AddCounts(size_t n, const At& at) {
    constexpr uint32_t kMost = std::numeric_limits<Cell>::max();
    for (size_t i = 0; i < n; ++i) {
      if (i + kPrefetchAhead < n) Prefetch(at(i + kPrefetchAhead).key);
      const KeyCount entry = at(i);
      ForEachCell(entry.key, [&](Cell* cell) {
        Cell old = __atomic_load_n(cell, __ATOMIC_RELAXED);
        Cell sum;
        do {
          sum = static_cast<Cell>(SaturatingAdd(old, entry.count, kMost));
        } while (sum != old && !__atomic_compare_exchange_n(cell, &old, sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
      });
    }
    if (n > 0) Changed();
  }

  // A shared lock; before it, the cells are cleared if `step` is in a later epoch than the last count.
  std::shared_lock<std::shared_mutex> LockInEpoch(int64_t step) {
    std::shared_lock<std::shared_mutex> shared(mutex_);
    const int64_t every = config().reset_every_steps;
    if (every == 0) return shared;
    const int64_t epoch = step / every - (step % every < 0 ? 1 : 0);
    if (epoch > epoch_) {
      shared.unlock();
      {
        const std::unique_lock<std::shared_mutex> alone(mutex_);
        if (epoch > epoch_) {
          if (epoch_ != kNoEpoch) std::memset(cells_.get(), 0, CellBytes());
          epoch_ = epoch;
          Changed();
        }
      }
      shared.lock();
    }
    return shared;
  }

  // After the change: who reads the cells before it sees all of it, has ended the mark before that.
  void Changed() { changed_.store(mark(), std::memory_order_release); }

  const Geometry geometry_;
  std::unique_ptr<Cell, Unmap> cells_;
  int64_t epoch_ = kNoEpoch;
  std::atomic<uint32_t> changed_{0};  // the mark of the last change
  mutable std::shared_mutex mutex_;   // alone: reset and restore; shared: everything else
};

template <typename Cell>
Result<std::shared_ptr<Admission>> Make(const AdmissionConfig& config, Geometry geometry) {
  // Zero pages, huge ones where the filter is large: cells are touched at random.
  void* zeroed = MapMemory(geometry.groups * geometry.cells_per_group * sizeof(Cell));
  if (zeroed == nullptr) {
    return Status::NoSpace("BloomAdmission: no memory for " +
                           Describe(geometry.groups, geometry.cells_per_group, 8 * sizeof(Cell)) +
                           "; lower expected_keys or raise false_positive_rate");
  }
  return std::shared_ptr<Admission>(std::make_shared<BloomAdmission<Cell>>(config, geometry, zeroed));
}

}  // namespace

Result<std::shared_ptr<Admission>> CreateBloomAdmission(const AdmissionConfig& config) {
  const Geometry geometry = GeometryOf(config);
  if (geometry.cells_per_group > (uint64_t{1} << 40)) {
    return Status::Invalid("BloomAdmission: expected_keys " + std::to_string(config.expected_keys) + " needs " +
                           Describe(geometry.groups, geometry.cells_per_group, config.counter_bits));
  }
  if (config.counter_bits == 8) return Make<uint8_t>(config, geometry);
  if (config.counter_bits == 16) return Make<uint16_t>(config, geometry);
  return Make<uint32_t>(config, geometry);
}

}  // namespace tfctr
