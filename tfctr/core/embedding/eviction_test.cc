// Eviction: every rule and random lists of rules against a brute-force model, boundaries, ties, what protects, dry
// runs, refusals, room for max_bytes, and threads.
#include "tfctr/core/embedding/eviction.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/table_snapshot.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

using Kind = EvictionRule::Kind;
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int kDim = 3;

std::shared_ptr<EmbeddingTable> MakeTable(bool counter, uint32_t min_count = 1000000, uint64_t max_bytes = 0) {
  TableConfig config;
  config.name = "t";
  config.layout = RowLayout::Make(kDim, {{"accumulator", kDim, 0.1f}}, true, true, true).Take();
  config.init.kind = InitializerConfig::Kind::kConstant;
  config.init.a = 0.5f;
  config.max_bytes = max_bytes;
  if (counter) {
    AdmissionConfig admission;
    admission.kind = AdmissionConfig::Kind::kCounter;
    admission.min_count = min_count;
    admission.last_step = admission.last_time = true;
    config.admission = Admission::Create(admission).Take();
  }
  auto table = EmbeddingTable::Create(config);
  CHECK_OK(table.status());
  return table.Take();
}

struct Row {
  float value[kDim];
  uint32_t frequency;
  int64_t last_step;
  int64_t last_time_ms;
};
using Rows = std::map<int64_t, Row>;
using Counters = std::map<int64_t, KeyCount>;

void Fill(EmbeddingTable* table, const Rows& rows, const Counters& counters) {
  std::vector<int64_t> keys, steps, times;
  std::vector<float> values;
  std::vector<uint32_t> frequency;
  for (const auto& [key, row] : rows) {
    keys.push_back(key);
    values.insert(values.end(), row.value, row.value + kDim);
    frequency.push_back(row.frequency);
    steps.push_back(row.last_step);
    times.push_back(row.last_time_ms);
  }
  RowColumns columns;
  columns.values = values.data();
  columns.frequency = frequency.data();
  columns.last_step = steps.data();
  columns.last_time_ms = times.data();
  CHECK_OK(table->Put(keys.data(), keys.size(), columns));
  std::vector<KeyCount> counts;
  for (const auto& [key, count] : counters) counts.push_back(count);
  if (!counts.empty()) table->admission()->Put(counts.data(), counts.size());
}

std::set<int64_t> KeysOf(const EmbeddingTable& table) {
  std::set<int64_t> keys;
  for (int shard = 0; shard < table.shards(); ++shard) {
    table.ForEach(shard, [&](int64_t key, const float*) { CHECK(keys.insert(key).second); });
  }
  CHECK_EQ(keys.size(), table.size());
  return keys;
}

std::set<int64_t> CountedKeys(const EmbeddingTable& table) {
  std::set<int64_t> keys;
  for (size_t part = 0; part < table.admission()->parts(); ++part) {
    table.admission()->Visit(part, [&](const KeyCount& counter) { keys.insert(counter.key); });
  }
  return keys;
}

template <typename Map>
std::set<int64_t> KeysOf(const Map& map) {
  std::set<int64_t> keys;
  for (const auto& item : map) keys.insert(item.first);
  return keys;
}

double Norm(const Row& row) {
  double sum = 0;
  for (float value : row.value) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// The page's rules, written down once more in the slowest way. Returns rows and counters taken.
std::pair<uint64_t, uint64_t> Model(const EvictionRule& rule, Now now, Rows* rows, Counters* counters) {
  using Order = std::tuple<double, int64_t>;
  const std::set<int64_t> shielded(rule.protected_keys.begin(), rule.protected_keys.end());
  const bool capacity = rule.kind == Kind::kCapacityLru || rule.kind == Kind::kCapacityLfu;
  std::vector<Order> old_rows, old_counters;
  for (const auto& [key, row] : *rows) {
    const double norm = Norm(row);
    const double order = rule.kind == Kind::kL2            ? norm
                         : rule.kind == Kind::kCapacityLfu ? row.frequency
                         : rule.kind == Kind::kTtl         ? static_cast<double>(row.last_time_ms)
                                                           : static_cast<double>(row.last_step);
    const bool takes = capacity || (rule.kind == Kind::kL2    ? norm < rule.threshold
                                    : rule.kind == Kind::kTtl ? now.time_ms - row.last_time_ms > rule.ttl_ms
                                                              : now.step - row.last_step > rule.steps_to_live);
    if (takes && shielded.count(key) == 0) old_rows.emplace_back(order, key);
  }
  for (const auto& [key, count] : *counters) {
    const double order = rule.kind == Kind::kCapacityLfu ? count.count
                         : rule.kind == Kind::kTtl       ? static_cast<double>(count.last_time_ms)
                                                         : static_cast<double>(count.last_step);
    const bool takes = capacity || (rule.kind == Kind::kTtl    ? now.time_ms - count.last_time_ms > rule.ttl_ms
                                    : rule.kind == Kind::kStep ? now.step - count.last_step > rule.steps_to_live
                                                               : false);
    if (takes && shielded.count(key) == 0) old_counters.emplace_back(order, key);
  }
  const uint64_t keep = capacity ? std::max(rule.max_rows, rule.min_rows) : rule.min_rows;
  uint64_t row_limit = rows->size() > keep ? rows->size() - keep : 0;
  uint64_t counter_limit = counters->size();
  if (capacity) counter_limit = counters->size() > rule.max_rows ? counters->size() - rule.max_rows : 0;
  std::sort(old_rows.begin(), old_rows.end());
  std::sort(old_counters.begin(), old_counters.end());
  row_limit = std::min<uint64_t>(row_limit, old_rows.size());
  counter_limit = std::min<uint64_t>(counter_limit, old_counters.size());
  for (uint64_t i = 0; i < row_limit; ++i) rows->erase(std::get<1>(old_rows[i]));
  for (uint64_t i = 0; i < counter_limit; ++i) counters->erase(std::get<1>(old_counters[i]));
  return {row_limit, counter_limit};
}

template <typename Random>
int64_t RandomKey(Random* random) {
  const int64_t key = static_cast<int64_t>((*random)() % 400) - 200;
  return key == 0 ? kMin : key == 1 ? kMax : key;
}

void AgainstModel() {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    Rows rows;
    Counters counters;
    for (uint64_t i = random() % 150; i > 0; --i) {
      Row row;
      for (float& value : row.value) value = static_cast<float>(random() % 5) * 0.1f - 0.2f;
      row.frequency = static_cast<uint32_t>(1 + random() % 5);
      row.last_step = static_cast<int64_t>(random() % 20) - 5;  // few values: many ties
      row.last_time_ms = static_cast<int64_t>(random() % 20) * 1000;
      rows[RandomKey(&random)] = row;
    }
    for (uint64_t i = random() % 80; i > 0; --i) {
      const int64_t key = RandomKey(&random);
      if (rows.count(key) > 0) continue;
      counters[key] = {key, static_cast<uint32_t>(1 + random() % 5), static_cast<int64_t>(random() % 20),
                       static_cast<int64_t>(random() % 20) * 1000};
    }
    const bool counted = round % 3 != 0;
    if (!counted) counters.clear();
    auto table = MakeTable(counted);
    Fill(table.get(), rows, counters);
    std::vector<EvictionRule> rules(1 + random() % 3);
    for (EvictionRule& rule : rules) {
      rule.kind = static_cast<Kind>(random() % 5);
      rule.steps_to_live = static_cast<int64_t>(random() % 15);
      rule.ttl_ms = static_cast<int64_t>(random() % 15) * 1000;
      rule.threshold = static_cast<double>(random() % 50) / 100.0;
      if (rule.kind == Kind::kCapacityLru || rule.kind == Kind::kCapacityLfu) rule.max_rows = random() % 120;
      if (random() % 2 == 0) rule.min_rows = random() % 100;
      for (uint64_t i = random() % 2 * (random() % 40); i > 0; --i) rule.protected_keys.push_back(RandomKey(&random));
    }
    const Now now{static_cast<int64_t>(random() % 25), static_cast<int64_t>(random() % 25) * 1000};
    EvictionResult dry, real, again;
    CHECK_OK(Evict(table.get(), rules, now, true, &dry));
    CHECK(KeysOf(*table) == KeysOf(rows));
    CHECK_OK(Evict(table.get(), rules, now, false, &real));
    CHECK_EQ(real.per_rule.size(), rules.size());
    uint64_t all_rows = 0, all_counters = 0;
    for (size_t i = 0; i < rules.size(); ++i) {
      const auto [taken, counts] = Model(rules[i], now, &rows, &counters);
      CHECK_EQ(real.per_rule[i].rows, taken);
      CHECK_EQ(real.per_rule[i].counters, counts);
      CHECK_EQ(dry.per_rule[i].rows, taken);
      CHECK_EQ(dry.per_rule[i].counters, counts);
      CHECK_EQ(dry.per_rule[i].bytes, real.per_rule[i].bytes);
      CHECK_EQ(real.per_rule[i].bytes, taken * (table->layout().stride() + 16) + counts * 35);
      all_rows += taken;
      all_counters += counts;
    }
    CHECK_EQ(real.total.rows, all_rows);
    CHECK_EQ(real.total.counters, all_counters);
    CHECK_EQ(dry.total.bytes, real.total.bytes);
    CHECK(KeysOf(*table) == KeysOf(rows));
    if (counted) CHECK(CountedKeys(*table) == KeysOf(counters));
    if (rules.size() == 1) {  // nothing is left for the same rule
      CHECK_OK(Evict(table.get(), rules, now, false, &again));
      CHECK_EQ(again.total.rows + again.total.counters, 0u);
    }
  }
}

EvictionRule Rule(Kind kind) {
  EvictionRule rule;
  rule.kind = kind;
  return rule;
}

uint64_t Taken(EmbeddingTable* table, const EvictionRule& rule, Now now) {
  EvictionResult result;
  CHECK_OK(Evict(table, {rule}, now, false, &result));
  return result.total.rows;
}

void Boundaries() {
  auto table = MakeTable(false);
  const Row row{{0.3f, 0.0f, 0.4f}, 1, 100, 5000};
  Fill(table.get(), {{kMin, row}}, {});
  EvictionRule step = Rule(Kind::kStep);
  step.steps_to_live = 10;
  CHECK_EQ(Taken(table.get(), step, {110, 0}), 0u);  // age == limit stays
  CHECK_EQ(Taken(table.get(), step, {kMin, 0}), 0u);
  CHECK_EQ(Taken(table.get(), step, {111, 0}), 1u);
  Fill(table.get(), {{kMin, row}}, {});
  EvictionRule ttl = Rule(Kind::kTtl);
  ttl.ttl_ms = 1000;
  CHECK_EQ(Taken(table.get(), ttl, {0, 6000}), 0u);
  CHECK_EQ(Taken(table.get(), ttl, {0, 1}), 0u);  // the clock went back
  CHECK_EQ(Taken(table.get(), ttl, {0, 6001}), 1u);
  Fill(table.get(), {{kMax, row}}, {});
  EvictionRule l2 = Rule(Kind::kL2);
  l2.threshold = Norm(row);  // 0.5, not 0.25 and not 0.125
  CHECK(std::abs(l2.threshold - 0.5) < 1e-7);
  CHECK_EQ(Taken(table.get(), l2, {}), 0u);
  l2.threshold = std::nextafter(l2.threshold, 1.0);
  CHECK_EQ(Taken(table.get(), l2, {}), 1u);
  Row nan = row;
  nan.value[1] = std::nanf("");
  Fill(table.get(), {{0, nan}}, {});
  l2.threshold = std::numeric_limits<double>::infinity();
  CHECK_EQ(Taken(table.get(), l2, {}), 0u);  // a NaN is not small
  EvictionRule capacity = Rule(Kind::kCapacityLru);
  capacity.max_rows = 0;
  CHECK_EQ(Taken(table.get(), capacity, {}), 1u);
  CHECK_EQ(table->size(), 0u);
  CHECK_EQ(Taken(table.get(), capacity, {}), 0u);         // an empty table
  Fill(table.get(), {{5, {{0, 0, 0}, 1, kMin, 0}}}, {});  // ages beyond int64
  step.steps_to_live = kMax;
  CHECK_EQ(Taken(table.get(), step, {kMax, 0}), 1u);
}

void Ties() {
  for (Kind kind : {Kind::kCapacityLru, Kind::kCapacityLfu}) {
    auto table = MakeTable(false);
    Rows rows;
    for (int64_t key : {kMin, int64_t{-5}, int64_t{0}, int64_t{3}, kMax}) rows[key] = {{1, 1, 1}, 2, 9, 0};
    Fill(table.get(), rows, {});
    EvictionRule rule = Rule(kind);
    rule.max_rows = 2;
    CHECK_EQ(Taken(table.get(), rule, {10, 0}), 3u);
    CHECK((KeysOf(*table) == std::set<int64_t>{3, kMax}));  // signed order, whatever the shards
  }
}

void Refusals() {
  TableConfig config;
  config.name = "bare";
  config.layout = RowLayout::Make(2, {}, false, false, false).Take();
  auto bare = EmbeddingTable::Create(config).Take();
  EvictionResult result;
  const auto refused = [&](EmbeddingTable* table, const EvictionRule& rule, const char* part) {
    CHECK_FAILS(Evict(table, {rule}, {}, false, &result), Code::kInvalid, part);
    CHECK_FAILS(CheckRules(*table, {Rule(Kind::kL2), rule}), Code::kInvalid, part);
  };
  refused(bare.get(), Rule(Kind::kStep), "'bare': StepEviction needs the last step");
  refused(bare.get(), Rule(Kind::kTtl), "TtlEviction needs the last time");
  refused(bare.get(), Rule(Kind::kCapacityLru), "CapacityEviction needs the last step");
  refused(bare.get(), Rule(Kind::kCapacityLfu), "CapacityEviction needs the frequency");
  auto table = MakeTable(false);
  EvictionRule bad = Rule(Kind::kStep);
  bad.steps_to_live = -1;
  refused(table.get(), bad, "steps_to_live must not be negative, but is -1");
  bad = Rule(Kind::kTtl);
  bad.ttl_ms = -1500;
  refused(table.get(), bad, "must not be negative, but are -1.5");
  bad = Rule(Kind::kL2);
  bad.threshold = std::nan("");
  refused(table.get(), bad, "threshold");
  AdmissionConfig stampless;
  stampless.kind = AdmissionConfig::Kind::kCounter;
  config.name = "counted";
  config.layout = RowLayout::Make(2, {}, true, true, true).Take();
  config.admission = Admission::Create(stampless).Take();
  auto counted = EmbeddingTable::Create(config).Take();
  refused(counted.get(), Rule(Kind::kStep), "'counted': StepEviction needs the last step");
}

void RoomByCapacity() {
  auto table = MakeTable(false);
  Rows rows;
  for (int64_t key = 0; key < 320; ++key) rows[key] = {{1, 1, 1}, 2, key % 10, 0};
  Fill(table.get(), rows, {});
  CHECK_EQ(EvictForRoom(table.get(), {}, 5), 0u);
  CHECK_EQ(EvictForRoom(table.get(), {Rule(Kind::kL2)}, 5), 0u);
  EvictionRule rule = Rule(Kind::kCapacityLru);
  rule.min_rows = 300;
  rule.protected_keys = {0, 10};
  CHECK_EQ(EvictForRoom(table.get(), {Rule(Kind::kL2), rule}, 5), 10u);  // 1/32 of 320
  const std::set<int64_t> keys = KeysOf(*table);
  for (int64_t key = 20; key <= 110; key += 10) CHECK(keys.count(key) == 0);
  CHECK(keys.count(0) == 1 && keys.count(10) == 1 && keys.count(120) == 1);
  CHECK_EQ(EvictForRoom(table.get(), {rule}, 50), 10u);  // down to min_rows
  CHECK_EQ(EvictForRoom(table.get(), {rule}, 50), 0u);
}

// Keys that come once carry a table past max_bytes by their counters: old counters go, rows stay.
void RoomForCounters() {
  for (Kind kind : {Kind::kCapacityLru, Kind::kCapacityLfu}) {
    const uint64_t limit = MakeTable(true)->bytes() + 400000;
    auto table = MakeTable(true, 3, limit);
    EvictionRule rule = Rule(kind);
    rule.protected_keys = {-7};
    table->set_make_room([&](EmbeddingTable* self, size_t rows) { return EvictForRoom(self, {rule}, rows); });
    std::vector<int64_t> keys(300);
    std::vector<float*> rows(keys.size());
    for (int64_t step = 0; step < 300; ++step) {
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = step * 1000 + static_cast<int64_t>(i) + 1000;
      if (step < 30) std::fill(keys.begin() + 30, keys.begin() + 33, step);  // rows from the start
      if (step == 31) keys[0] = -7;
      ReadGuard guard(*table);
      CHECK_OK(table->FindOrInsert(&guard, keys.data(), keys.size(), Now{step, 0}, rows.data()));
      CHECK(table->bytes() <= limit);
      CHECK_EQ(table->admission()->Count(keys[299]), 1u);  // what this call counted is counted
    }
    CHECK_EQ(table->size(), 30u);
    CHECK_EQ(table->admission()->Count(-7), 1u);
    CHECK(table->admission()->size() > 3000);
  }
  // Without a capacity policy it is an error, until something takes counters.
  auto table = MakeTable(true, 3, MakeTable(true)->bytes() + 100000);
  std::vector<int64_t> keys(20000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  std::vector<float*> rows(keys.size());
  EvictionRule old = Rule(Kind::kStep);
  table->set_make_room([&](EmbeddingTable* self, size_t wanted) { return EvictForRoom(self, {old}, wanted); });
  {
    ReadGuard guard(*table);
    CHECK_FAILS(table->FindOrInsert(&guard, keys.data(), keys.size(), Now{1, 0}, rows.data()), Code::kNoSpace,
                "max_bytes");
  }
  EvictionResult result;
  CHECK_OK(Evict(table.get(), {old}, Now{2, 0}, false, &result));
  CHECK_EQ(result.total.counters, keys.size());
  ReadGuard guard(*table);
  CHECK_OK(table->FindOrInsert(&guard, keys.data(), 100, Now{3, 0}, rows.data()));
}

// The same contents give the same survivors, however they were inserted.
void Deterministic() {
  std::set<int64_t> first;
  for (int round = 0; round < 50; ++round) {
    auto table = MakeTable(false);
    std::mt19937_64 random(round);
    std::vector<int64_t> keys(500);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i * i) - 1000;
    std::shuffle(keys.begin(), keys.end(), random);
    std::vector<float*> found(keys.size());
    for (size_t i = 0; i < keys.size(); i += 50) {
      ReadGuard guard(*table);
      CHECK_OK(table->FindOrInsert(&guard, keys.data() + i, 50, Now{3, 0}, found.data()));
    }
    EvictionRule rule = Rule(Kind::kCapacityLru);
    rule.max_rows = 77;
    CHECK_EQ(Taken(table.get(), rule, {9, 0}), 423u);
    if (round == 0) first = KeysOf(*table);
    CHECK(KeysOf(*table) == first);
  }
}

// Lookups, updates, inserts, eviction and snapshots at once; what a thread keeps updating is never too old.
void Threads() {
  auto table = MakeTable(true, 2);
  std::atomic<int64_t> step{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<int64_t> keys(64);
      std::vector<float*> rows(keys.size());
      for (int round = 0; round < 400; ++round) {
        const Now now{step.fetch_add(1) + 1, 0};
        for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(random() % 2000) - 1000;
        keys[0] = keys[1] = 5000 + t;
        ReadGuard guard(*table);
        CHECK_OK(table->FindOrInsert(&guard, keys.data(), keys.size(), now, rows.data()));
        CHECK(rows[0] != nullptr);
        UpdateGuard update(*table);
        for (float* row : rows) {
          if (row == nullptr) continue;
          for (int i = 0; i < kDim; ++i) StoreRelaxed(row + i, LoadRelaxed(row + i) + 1.0f);
          table->Touch(row, now, table->this_mark());
        }
      }
    });
  }
  std::thread evictor([&] {
    EvictionRule old = Rule(Kind::kStep), capacity = Rule(Kind::kCapacityLfu);
    old.steps_to_live = 20;
    capacity.max_rows = 300;
    capacity.protected_keys = {5000, 5001, 5002};
    EvictionResult result;
    while (!stop.load()) {
      CHECK_OK(Evict(table.get(), {old, capacity}, Now{step.load(), 0}, true, &result));
      CHECK_OK(Evict(table.get(), {old, capacity}, Now{step.load(), 0}, false, &result));
    }
  });
  std::thread saver([&] {
    RowBlock block;
    while (!stop.load()) {
      TableSnapshot snapshot(table);
      std::set<int64_t> seen;
      for (int shard = 0; shard < snapshot.shards(); ++shard) {
        snapshot.ReadShard(shard, &block);
        for (size_t i = 0; i < block.rows; ++i) {
          CHECK(seen.insert(block.keys[i]).second);
          CHECK(block.frequency[i] >= 2);  // admitted with 2
          CHECK(block.last_step[i] > 0);
          // 0.5 and a whole number of updates: a row that belongs to its key, not one that was given back.
          for (size_t j = 0; j < kDim; ++j) CHECK_EQ(std::fmod(block.values[i * kDim + j], 1.0f), 0.5f);
        }
      }
      CHECK_EQ(seen.size(), snapshot.rows());
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop.store(true);
  evictor.join();
  saver.join();
  const std::set<int64_t> keys = KeysOf(*table);
  for (int64_t key : keys) CHECK(key >= -1000 && key <= 5002);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::AgainstModel();
  tfctr::Boundaries();
  tfctr::Ties();
  tfctr::Refusals();
  tfctr::RoomByCapacity();
  tfctr::RoomForCounters();
  tfctr::Deterministic();
  tfctr::Threads();
  std::cout << "eviction: ok" << std::endl;
}
