// What a table says has changed since a mark: a copy that is told of nothing else stays equal, whatever happens and
// however many threads do it.
#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tfctr/core/storage/embedding_table.h"
#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/removed_log.h"
#include "tfctr/core/storage/table_snapshot.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

constexpr int kDim = 3;
constexpr size_t kAll = SIZE_MAX;

std::shared_ptr<EmbeddingTable> Table(int shards, uint32_t min_count = 0) {
  TableConfig config;
  config.name = "items";
  config.layout = RowLayout::Make(kDim, {{"accumulator", 1, 0.5f}}, true, false, false, /*change=*/true).Take();
  if (min_count > 0) {
    AdmissionConfig admission;
    admission.kind = AdmissionConfig::Kind::kCounter;
    admission.min_count = min_count;
    admission.changes = true;
    config.admission = Admission::Create(admission).Take();
  }
  config.shards = shards;
  return EmbeddingTable::Create(std::move(config)).Take();
}

// Value, slot and frequency.
using Row = std::vector<float>;

struct Copy {
  std::map<int64_t, Row> rows;
  std::map<int64_t, uint32_t> counts;
  bool operator==(const Copy& other) const { return rows == other.rows && counts == other.counts; }
};

Row RowOfBlock(const RowBlock& block, size_t i) {
  Row row(block.values.begin() + static_cast<ptrdiff_t>(i * kDim),
          block.values.begin() + static_cast<ptrdiff_t>((i + 1) * kDim));
  row.push_back(block.slots[0][i]);
  row.push_back(static_cast<float>(block.frequency[i]));
  return row;
}

Copy Whole(const std::shared_ptr<EmbeddingTable>& table) {
  Copy copy;
  TableSnapshot snapshot(table);
  RowBlock block;
  for (int shard = 0; shard < snapshot.shards(); ++shard) {
    snapshot.ReadShard(shard, &block);
    for (size_t i = 0; i < block.rows; ++i) copy.rows[block.keys[i]] = RowOfBlock(block, i);
  }
  const Admission* admission = table->admission().get();
  for (size_t part = 0; admission != nullptr && part < admission->parts(); ++part) {
    admission->Visit(part, [&](const KeyCount& counted) { copy.counts[counted.key] = counted.count; });
  }
  return copy;
}

// Brings a copy from the end of `mark` to now. False where the table does not know any more what changed.
bool Follow(const std::shared_ptr<EmbeddingTable>& table, uint32_t mark, Copy* copy, size_t most = kAll) {
  std::vector<KeyCount> counts;
  std::vector<int64_t> removed;
  const Admission* admission = table->admission().get();
  for (size_t part = 0; admission != nullptr && part < admission->parts(); ++part) {
    const auto take = [&](const KeyCount& counted) { counts.push_back(counted); };
    if (!admission->VisitChanged(part, mark, take, &removed)) return false;
  }
  TableSnapshot snapshot(table);
  const ChangedRows changed = snapshot.Changes(mark, most);
  if (!changed.known) return false;
  removed.insert(removed.end(), changed.removed.begin(), changed.removed.end());
  for (const int64_t key : removed) {
    copy->rows.erase(key);
    copy->counts.erase(key);
  }
  RowBlock block;
  for (size_t begin = 0; begin < changed.rows.size(); begin += 7) {
    snapshot.ReadRows(changed, begin, std::min<size_t>(7, changed.rows.size() - begin), &block);
    for (size_t i = 0; i < block.rows; ++i) {
      copy->rows[block.keys[i]] = RowOfBlock(block, i);
      copy->counts.erase(block.keys[i]);
    }
  }
  for (const KeyCount& counted : counts) {
    if (copy->rows.count(counted.key) == 0) copy->counts[counted.key] = counted.count;
  }
  return true;
}

// One thing that changes a table.
void Change(EmbeddingTable* table, std::mt19937_64* random, int64_t keys) {
  std::vector<int64_t> ids((*random)() % 20 + 1);
  for (int64_t& id : ids) id = static_cast<int64_t>((*random)() % static_cast<uint64_t>(keys)) - keys / 2;
  const Now now;
  switch ((*random)() % 6) {
    case 0:
    case 1: {
      ReadGuard guard(*table);
      std::vector<float*> rows(ids.size());
      CHECK_OK(table->FindOrInsert(&guard, ids.data(), ids.size(), now, rows.data()));
      break;
    }
    case 2:
    case 3: {
      const ReadGuard reading(*table);
      const UpdateGuard updating(*table);
      std::vector<float*> rows(ids.size());
      table->Find(ids.data(), ids.size(), rows.data());
      for (float* row : rows) {
        if (row == nullptr) continue;
        const std::vector<float> to(kDim + 1, static_cast<float>((*random)() % 1000));
        WriteRow(row, to.data(), to.size());
        table->Touch(row, now, table->this_mark());
      }
      break;
    }
    case 4: {
      table->EraseIf(ids.data(), ids.size(), [](int64_t, const float*) { return true; });
      if (table->admission() == nullptr) break;
      table->admission()->EraseIf(ids.data(), ids.size(), [](const KeyCount&) { return true; });
      break;
    }
    default: {
      const std::vector<float> values(ids.size() * kDim, static_cast<float>((*random)() % 1000));
      RowColumns columns;
      columns.values = values.data();
      CHECK_OK(table->Put(ids.data(), ids.size(), columns));
    }
  }
}

void TestACopyFollows(int shards, uint32_t min_count, uint64_t seed) {
  const std::shared_ptr<EmbeddingTable> table = Table(shards, min_count);
  std::mt19937_64 random(seed);
  Copy every;
  Copy third;  // asks less often
  uint32_t mark = table->EndMark();
  uint32_t third_mark = mark;
  for (int round = 0; round < 200; ++round) {
    for (uint64_t i = random() % 5; i > 0; --i) Change(table.get(), &random, 300);
    const uint32_t next = table->EndMark();
    CHECK(Follow(table, mark, &every));
    CHECK(every == Whole(table));
    mark = next;
    if (round % 3 != 0) continue;
    CHECK(Follow(table, third_mark, &third));
    CHECK(third == Whole(table));
    third_mark = next;
  }
  CHECK(!every.rows.empty());
  CHECK(min_count == 0 || !every.counts.empty());
}

void TestOnlyWhatChanged() {
  const std::shared_ptr<EmbeddingTable> table = Table(4);
  std::vector<int64_t> keys(1000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  CHECK_OK(table->Put(keys.data(), keys.size(), RowColumns()));
  const uint32_t mark = table->EndMark();
  CHECK_OK(table->Put(keys.data() + 10, 3, RowColumns()));
  table->EraseIf(keys.data() + 11, 1, [](int64_t, const float*) { return true; });
  {
    TableSnapshot snapshot(table);
    ChangedRows changed = snapshot.Changes(mark, kAll);
    CHECK(changed.known);
    std::sort(changed.keys.begin(), changed.keys.end());
    CHECK((changed.keys == std::vector<int64_t>{10, 12}));
    CHECK(changed.removed == std::vector<int64_t>{11});
  }
  TableSnapshot again(table);
  CHECK(!again.Changes(mark, 1).known);  // more rows than the caller wants
  CHECK_EQ(again.rows(), 999u);
  RowBlock block;
  size_t rows = 0;  // ... who then reads all of them
  for (int shard = 0; shard < again.shards(); ++shard) {
    again.ReadShard(shard, &block);
    rows += block.rows;
  }
  CHECK_EQ(rows, 999u);
}

// Too many removals are forgotten, whole marks at a time, and it is said; a later mark is known.
void TestTheLogIsBounded() {
  RemovedLog log;
  std::vector<int64_t> keys;
  log.Add(1, 1, 0);  // the first mark: nobody asks
  CHECK(log.Since(0, &keys));
  CHECK(keys.empty());
  for (int64_t key = 0; key < 5000; ++key) log.Add(key % 50, static_cast<uint32_t>(2 + key / 1000), 0);
  CHECK(log.Since(1, &keys));  // the same keys again and again need no room
  CHECK_EQ(std::set<int64_t>(keys.begin(), keys.end()).size(), 50u);
  for (int64_t key = 0; key < 5000; ++key) log.Add(key, 10, 0);
  keys.clear();
  CHECK(!log.Since(1, &keys));
  CHECK(!log.Since(9, &keys));
  CHECK(log.Since(10, &keys));
  log.Add(7, 11, 0);
  keys.clear();
  CHECK(log.Since(10, &keys));
  CHECK(keys == std::vector<int64_t>{7});
  log.Lose(12);
  CHECK(!log.Since(11, &keys));
  RemovedLog large;  // of a part with many keys
  for (int64_t key = 0; key < 5000; ++key) large.Add(key, 2, 10000);
  keys.clear();
  CHECK(large.Since(1, &keys));
  CHECK_EQ(keys.size(), 5000u);
}

void TestAForgetfulTableSaysSo() {
  const std::shared_ptr<EmbeddingTable> table = Table(1);
  std::vector<int64_t> keys(20000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
  CHECK_OK(table->Put(keys.data(), keys.size(), RowColumns()));
  const uint32_t mark = table->EndMark();
  table->EraseIf(keys.data(), keys.size(), [](int64_t, const float*) { return true; });
  Copy copy;
  CHECK(!Follow(table, mark, &copy));
  const uint32_t next = table->EndMark();
  copy = Whole(table);
  CHECK_OK(table->Put(keys.data(), 3, RowColumns()));
  CHECK(Follow(table, next, &copy));
  CHECK(copy == Whole(table));
}

// What is written beside a Follow is in that one or in the next.
void TestThreads(uint32_t min_count) {
  const std::shared_ptr<EmbeddingTable> table = Table(3, min_count);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      while (!stop.load()) Change(table.get(), &random, 500);
    });
  }
  Copy copy;
  uint32_t mark = table->EndMark();
  copy = Whole(table);
  for (int round = 0; round < 100; ++round) {
    const uint32_t next = table->EndMark();
    CHECK(Follow(table, mark, &copy));
    mark = next;
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  table->EndMark();
  CHECK(Follow(table, mark, &copy));
  CHECK(copy == Whole(table));
}

}  // namespace
}  // namespace tfctr

int main() {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    tfctr::TestACopyFollows(1, 0, seed);
    tfctr::TestACopyFollows(5, 3, seed);
  }
  tfctr::TestOnlyWhatChanged();
  tfctr::TestTheLogIsBounded();
  tfctr::TestAForgetfulTableSaysSo();
  tfctr::TestThreads(0);
  tfctr::TestThreads(3);
  return 0;
}
