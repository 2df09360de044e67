#include "tfctr/core/embedding/eviction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "tfctr/core/storage/relaxed.h"

namespace tfctr {
namespace {

using Kind = EvictionRule::Kind;
using KeySet = std::unordered_set<int64_t>;

constexpr uint64_t kIndexEntryBytes = 16;
constexpr size_t kEraseBatch = 16384;  // updates wait for one batch at most
constexpr uint64_t kRoomFraction = 32;

// A key and what a rule orders it by: the least goes first, of equals the smaller key.
struct Ranked {
  uint64_t rank;
  int64_t key;
  bool operator<(const Ranked& other) const { return rank != other.rank ? rank < other.rank : key < other.key; }
};

// Ranks keep the order of what they stand for.
uint64_t RankOf(int64_t value) { return static_cast<uint64_t>(value) ^ (uint64_t{1} << 63); }
uint64_t RankOf(double not_negative) {
  uint64_t bits;
  std::memcpy(&bits, &not_negative, sizeof(bits));
  return bits;
}

bool OlderThan(int64_t last, int64_t now, int64_t limit) {
  return static_cast<__int128>(now) - static_cast<__int128>(last) > limit;
}

// Squares of floats are exact in double, and are added in the order of the columns: the same on every machine.
double Norm(const float* row, int dim) {
  double sum = 0.0;
  for (int i = 0; i < dim; ++i) {
    const double value = LoadRelaxed(row + i);
    sum += value * value;
  }
  return std::sqrt(sum);
}

bool IsCapacity(const EvictionRule& rule) { return rule.kind == Kind::kCapacityLru || rule.kind == Kind::kCapacityLfu; }

// The rank of a row that the rule may take, nothing for one that it leaves.
std::optional<uint64_t> RowRank(const EvictionRule& rule, const RowLayout& layout, Now now, const float* row) {
  switch (rule.kind) {
    case Kind::kStep: {
      const int64_t last = LoadRelaxed(layout.last_step(row));
      if (!OlderThan(last, now.step, rule.steps_to_live)) return std::nullopt;
      return RankOf(last);
    }
    case Kind::kTtl: {
      const int64_t last = LoadRelaxed(layout.last_time_ms(row));
      if (!OlderThan(last, now.time_ms, rule.ttl_ms)) return std::nullopt;
      return RankOf(last);
    }
    case Kind::kL2: {
      const double norm = Norm(row, layout.dim());
      if (!(norm < rule.threshold)) return std::nullopt;
      return RankOf(norm);
    }
    case Kind::kCapacityLru:
      return RankOf(LoadRelaxed(layout.last_step(row)));
    case Kind::kCapacityLfu:
      return LoadRelaxed(layout.frequency(row));
  }
  return std::nullopt;
}

std::optional<uint64_t> CounterRank(const EvictionRule& rule, Now now, const KeyCount& counter) {
  switch (rule.kind) {
    case Kind::kStep:
      if (!OlderThan(counter.last_step, now.step, rule.steps_to_live)) return std::nullopt;
      return RankOf(counter.last_step);
    case Kind::kTtl:
      if (!OlderThan(counter.last_time_ms, now.time_ms, rule.ttl_ms)) return std::nullopt;
      return RankOf(counter.last_time_ms);
    case Kind::kL2:
      return std::nullopt;
    case Kind::kCapacityLru:
      return RankOf(counter.last_step);
    case Kind::kCapacityLfu:
      return counter.count;
  }
  return std::nullopt;
}

// Keeps the `limit` least of what is offered.
class Least {
 public:
  explicit Least(uint64_t limit) : limit_(limit) {}

  void Offer(const Ranked& item) {
    if (kept_.size() < limit_) {
      kept_.push_back(item);
      if (kept_.size() == limit_) std::make_heap(kept_.begin(), kept_.end());
    } else if (limit_ > 0 && item < kept_.front()) {
      std::pop_heap(kept_.begin(), kept_.end());
      kept_.back() = item;
      std::push_heap(kept_.begin(), kept_.end());
    }
  }
  // False where no item of this rank can be kept: saves the questions that cost more.
  bool MayKeep(uint64_t rank) const { return kept_.size() < limit_ || (limit_ > 0 && rank <= kept_.front().rank); }

  std::vector<Ranked> Take() { return std::move(kept_); }

 private:
  uint64_t limit_;
  std::vector<Ranked> kept_;
};

uint64_t Excess(uint64_t have, uint64_t keep) { return have > keep ? have - keep : 0; }

// One rule on one table. `skip`: keys that earlier rules of a dry run took (null or empty in a real one: they are
// gone).
class Pass {
 public:
  Pass(EmbeddingTable* table, const EvictionRule& rule, Now now)
      : table_(table), rule_(rule), now_(now), protected_(rule.protected_keys.begin(), rule.protected_keys.end()) {}

  std::vector<Ranked> PlanRows(uint64_t limit, const KeySet* skip) const {
    Least least(limit);
    for (int shard = 0; shard < table_->shards() && limit > 0; ++shard) {
      table_->ForEach(shard, [&](int64_t key, const float* row) {
        const auto rank = RowRank(rule_, table_->layout(), now_, row);
        if (rank && least.MayKeep(*rank) && Open(key, skip)) least.Offer({*rank, key});
      });
    }
    return least.Take();
  }

  std::vector<Ranked> PlanCounters(uint64_t limit, const KeySet* skip) const {
    Least least(limit);
    const Admission& admission = *table_->admission();
    for (size_t part = 0; part < admission.parts() && limit > 0; ++part) {
      admission.Visit(part, [&](const KeyCount& counter) {
        const auto rank = CounterRank(rule_, now_, counter);
        if (rank && least.MayKeep(*rank) && Open(counter.key, skip)) least.Offer({*rank, counter.key});
      });
    }
    return least.Take();
  }

  // How many rows the rule may take of so many.
  uint64_t RowLimit(uint64_t rows) const {
    return Excess(rows, IsCapacity(rule_) ? std::max(rule_.max_rows, rule_.min_rows) : rule_.min_rows);
  }
  uint64_t CounterLimit(uint64_t counters) const {
    return IsCapacity(rule_) ? Excess(counters, rule_.max_rows) : counters;
  }

  // An update or a count since the scan may have taken a key out of what the plan reaches. Ranks of use only grow, so
  // what still ranks no higher than the plan's last still belongs to it.
  uint64_t EraseRows(const std::vector<Ranked>& plan) const {
    if (plan.empty()) return 0;
    const Ranked last = *std::max_element(plan.begin(), plan.end());
    return InBatches(plan, [&](const int64_t* keys, size_t n) {
      return table_->EraseIf(keys, n, [&](int64_t key, const float* row) {
        const auto rank = RowRank(rule_, table_->layout(), now_, row);
        return rank && !(last < Ranked{*rank, key});
      });
    });
  }

  uint64_t EraseCounters(const std::vector<Ranked>& plan) const {
    if (plan.empty()) return 0;
    const Ranked last = *std::max_element(plan.begin(), plan.end());
    return InBatches(plan, [&](const int64_t* keys, size_t n) {
      return table_->admission()->EraseIf(keys, n, [&](const KeyCount& counter) {
        const auto rank = CounterRank(rule_, now_, counter);
        return rank && !(last < Ranked{*rank, counter.key});
      });
    });
  }

 private:
  bool Open(int64_t key, const KeySet* skip) const {
    return protected_.count(key) == 0 && (skip == nullptr || skip->count(key) == 0);
  }

  template <typename Erase>
  static uint64_t InBatches(const std::vector<Ranked>& plan, const Erase& erase) {
    uint64_t erased = 0;
    std::vector<int64_t> keys;
    for (size_t begin = 0; begin < plan.size(); begin += kEraseBatch) {
      keys.clear();
      const size_t end = std::min(plan.size(), begin + kEraseBatch);
      for (size_t i = begin; i < end; ++i) keys.push_back(plan[i].key);
      erased += erase(keys.data(), keys.size());
    }
    return erased;
  }

  EmbeddingTable* table_;
  const EvictionRule& rule_;
  const Now now_;
  const KeySet protected_;
};

Status Lacks(const EmbeddingTable& table, const char* what, const char* policy) {
  return Status::Invalid("embedding variable '" + table.name() + "': " + policy + " needs the " + what +
                         " of every row, which this table does not keep");
}

Status CheckRule(const EmbeddingTable& table, const EvictionRule& rule) {
  const RowLayout& layout = table.layout();
  const bool by_step = rule.kind == Kind::kStep || rule.kind == Kind::kCapacityLru;
  const bool counters = table.admission() != nullptr && table.admission()->parts() > 0;
  const char* policy = rule.kind == Kind::kStep ? "StepEviction" : "CapacityEviction";
  if (by_step && (!layout.has_last_step() || (counters && !table.admission()->config().last_step))) {
    return Lacks(table, "last step", policy);
  }
  if (rule.kind == Kind::kTtl && (!layout.has_last_time() || (counters && !table.admission()->config().last_time))) {
    return Lacks(table, "last time", "TtlEviction");
  }
  if (rule.kind == Kind::kCapacityLfu && !layout.has_frequency()) return Lacks(table, "frequency", policy);
  const std::string where = "embedding variable '" + table.name() + "': ";
  if (rule.kind == Kind::kStep && rule.steps_to_live < 0) {
    return Status::Invalid(where + "steps_to_live must not be negative, but is " + std::to_string(rule.steps_to_live));
  }
  if (rule.kind == Kind::kTtl && rule.ttl_ms < 0) {
    return Status::Invalid(where + "the seconds of a TtlEviction must not be negative, but are " +
                           std::to_string(static_cast<double>(rule.ttl_ms) / 1000.0));
  }
  if (rule.kind == Kind::kL2 && !(rule.threshold >= 0.0)) {
    return Status::Invalid(where + "the threshold of an L2Eviction must be 0 or more, but is " +
                           std::to_string(rule.threshold));
  }
  return Status::Ok();
}

EvictionCount CountOf(const EmbeddingTable& table, uint64_t rows, uint64_t counters) {
  const uint64_t counter_bytes = table.admission() == nullptr ? 0 : table.admission()->bytes_per_key();
  return {rows, counters, rows * (table.layout().stride() + kIndexEntryBytes) + counters * counter_bytes};
}

}  // namespace

Status CheckRules(const EmbeddingTable& table, const std::vector<EvictionRule>& rules) {
  for (const EvictionRule& rule : rules) TFCTR_RETURN_IF_ERROR(CheckRule(table, rule));
  return Status::Ok();
}

Status Evict(EmbeddingTable* table, const std::vector<EvictionRule>& rules, Now now, bool dry_run,
             EvictionResult* result) {
  *result = EvictionResult();
  TFCTR_RETURN_IF_ERROR(CheckRules(*table, rules));
  const bool counters = table->admission() != nullptr && table->admission()->parts() > 0;
  KeySet taken_rows, taken_counters;
  for (const EvictionRule& rule : rules) {
    const Pass pass(table, rule, now);
    const auto rows = pass.PlanRows(pass.RowLimit(Excess(table->size(), taken_rows.size())), &taken_rows);
    std::vector<Ranked> counts;
    if (counters) {
      const uint64_t left = Excess(table->admission()->size(), taken_counters.size());
      counts = pass.PlanCounters(pass.CounterLimit(left), &taken_counters);
    }
    if (dry_run) {
      for (const Ranked& row : rows) taken_rows.insert(row.key);
      for (const Ranked& counter : counts) taken_counters.insert(counter.key);
      result->per_rule.push_back(CountOf(*table, rows.size(), counts.size()));
    } else {
      const uint64_t erased = pass.EraseRows(rows);
      result->per_rule.push_back(CountOf(*table, erased, pass.EraseCounters(counts)));
    }
    const EvictionCount& last = result->per_rule.back();
    result->total.rows += last.rows;
    result->total.counters += last.counters;
    result->total.bytes += last.bytes;
  }
  return Status::Ok();
}

size_t EvictForRoom(EmbeddingTable* table, const std::vector<EvictionRule>& rules, size_t rows) {
  const auto rule = std::find_if(rules.begin(), rules.end(), IsCapacity);
  if (rule == rules.end() || !CheckRule(*table, *rule).ok()) return 0;
  const Pass pass(table, *rule, Now{});
  // Rows are refused before they pass the limit, counters are not: what is past it is theirs.
  const uint64_t limit = table->config().max_bytes;
  if (limit != 0 && table->bytes() > limit && table->admission() != nullptr && table->admission()->size() > 0) {
    return pass.EraseCounters(pass.PlanCounters(table->admission()->size() / 2 + 1, nullptr));
  }
  const uint64_t size = table->size();
  const uint64_t wanted = std::max<uint64_t>(rows, size / kRoomFraction);
  return pass.EraseRows(pass.PlanRows(std::min(wanted, Excess(size, rule->min_rows)), nullptr));
}

}  // namespace tfctr
