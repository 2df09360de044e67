// Many threads on one table: lookups, inserts, updates, erasing and snapshots at once. Run under ThreadSanitizer by
// tools/check_native.sh; the invariants hold without it too.
#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tfctr/core/storage/embedding_table.h"
#include "tfctr/core/storage/relaxed.h"
#include "tfctr/core/storage/table_snapshot.h"
#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

constexpr int kDim = 5;
constexpr size_t kBatch = 200;
constexpr float kFresh = -1.0f;  // the initial value; an update writes the key into every float

std::shared_ptr<EmbeddingTable> Table(std::shared_ptr<Admission> admission, int shards, uint64_t max_bytes = 0) {
  TableConfig config;
  config.name = "items";
  config.layout = RowLayout::Make(kDim, {{"accumulator", kDim, kFresh}}, true, true, false).Take();
  config.init.kind = InitializerConfig::Kind::kConstant;
  config.init.a = kFresh;
  config.admission = std::move(admission);
  config.shards = shards;
  config.max_bytes = max_bytes;
  Result<std::shared_ptr<EmbeddingTable>> table = EmbeddingTable::Create(config);
  CHECK_OK(table.status());
  return table.Take();
}

std::shared_ptr<Admission> Counter(uint32_t min_count) {
  AdmissionConfig config;
  config.kind = AdmissionConfig::Kind::kCounter;
  config.min_count = min_count;
  return Admission::Create(config).Take();
}

std::vector<int64_t> Draw(std::mt19937_64* random, int64_t keys) {
  std::vector<int64_t> drawn(kBatch);
  for (int64_t& key : drawn) key = static_cast<int64_t>((*random)() % static_cast<uint64_t>(keys));
  return drawn;
}

// A row that was found for a key holds what was written for this key, as long as the guard lives.
void CheckRow(const float* row, int64_t key) {
  for (int j = 0; j < 2 * kDim; ++j) {
    const float value = LoadRelaxed(row + j);
    CHECK(value == kFresh || value == static_cast<float>(key));
  }
}

class Storm {
 public:
  Storm(std::shared_ptr<EmbeddingTable> table, int64_t keys) : table_(std::move(table)), keys_(keys) {}

  void Train(int id, int rounds) {
    std::mt19937_64 random(static_cast<uint64_t>(id));
    std::vector<float*> rows(kBatch);
    std::vector<float> out(kBatch * kDim);
    // Not before the others had their turn: on a busy machine all rounds may fit into one slice of time.
    for (int round = 0; round < rounds || erased_ == 0 || snapshots_ == 0; ++round) {
      const std::vector<int64_t> keys = Draw(&random, keys_);
      const Now now{round, round};
      {
        ReadGuard guard(*table_);
        CHECK_OK(table_->FindOrInsert(&guard, keys.data(), kBatch, now, rows.data()));
        table_->CopyRows(rows.data(), kBatch, out.data());
        for (size_t i = 0; i < kBatch; ++i) {
          if (rows[i] != nullptr) CheckRow(rows[i], keys[i]);
        }
      }
      ReadGuard guard(*table_);
      UpdateGuard update(*table_);
      table_->Find(keys.data(), kBatch, rows.data());
      for (size_t i = 0; i < kBatch; ++i) {
        if (rows[i] == nullptr) continue;
        for (int j = 0; j < 2 * kDim; ++j) StoreRelaxed(rows[i] + j, static_cast<float>(keys[i]));
        table_->Touch(rows[i], now, table_->this_mark());
      }
    }
    --training_;
  }

  void Read(int id) {
    std::mt19937_64 random(static_cast<uint64_t>(id));
    std::vector<float*> rows(kBatch);
    std::vector<float> out(kBatch * kDim);
    while (training_ > 0) {
      const std::vector<int64_t> keys = Draw(&random, keys_);
      ReadGuard guard(*table_);
      table_->Find(keys.data(), kBatch, rows.data());
      table_->Gather(keys.data(), kBatch, out.data());
      std::this_thread::yield();  // the guard outlives some erasing
      for (size_t i = 0; i < kBatch; ++i) {
        if (rows[i] != nullptr) CheckRow(rows[i], keys[i]);
      }
    }
  }

  void Erase(int id) {
    std::mt19937_64 random(static_cast<uint64_t>(id));
    while (training_ > 0) {
      std::vector<int64_t> old;
      for (int s = 0; s < table_->shards(); ++s) {
        table_->ForEach(s, [&](int64_t key, const float* row) {
          CheckRow(row, key);
          if (random() % 4 == 0) old.push_back(key);
        });
      }
      erased_ += table_->EraseIf(old.data(), old.size(), [](int64_t key, const float* row) {
        CheckRow(row, key);
        return key % 7 != 0;
      });
      std::this_thread::yield();
    }
  }

  void Snapshot() {
    RowBlock block;
    while (training_ > 0) {
      TableSnapshot snapshot(table_);
      std::unordered_set<int64_t> seen;
      for (int s = 0; s < snapshot.shards(); ++s) {
        snapshot.ReadShard(s, &block);
        for (size_t i = 0; i < block.rows; ++i) {
          CHECK(seen.insert(block.keys[i]).second);
          CHECK(block.frequency[i] > 0);
          // One moment: an update is in all floats of a row or in none.
          const float value = block.values[i * kDim];
          CHECK(value == kFresh || value == static_cast<float>(block.keys[i]));
          for (int j = 0; j < kDim; ++j) {
            CHECK_EQ(block.values[i * kDim + static_cast<size_t>(j)], value);
            CHECK_EQ(block.slots[0][i * kDim + static_cast<size_t>(j)], value);
          }
        }
      }
      CHECK_EQ(seen.size(), snapshot.rows());
      ++snapshots_;
    }
  }

  void Run(int trainers, int rounds) {
    training_ = trainers;
    std::vector<std::thread> threads;
    for (int i = 0; i < trainers; ++i) threads.emplace_back([this, i, rounds] { Train(i, rounds); });
    threads.emplace_back([this] { Read(100); });
    threads.emplace_back([this] { Erase(200); });
    threads.emplace_back([this] { Snapshot(); });
    for (std::thread& thread : threads) thread.join();
    size_t visited = 0;
    for (int s = 0; s < table_->shards(); ++s) {
      table_->ForEach(s, [&](int64_t key, const float* row) {
        ++visited;
        CheckRow(row, key);
      });
    }
    CHECK_EQ(visited, table_->size());
    CHECK(erased_ > 0 && snapshots_ > 0);
  }

 private:
  const std::shared_ptr<EmbeddingTable> table_;
  const int64_t keys_;
  std::atomic<int> training_{0};
  std::atomic<size_t> erased_{0};
  std::atomic<size_t> snapshots_{0};
};

// No occurrence is lost or counted twice, whoever inserts the key.
void TestCounts(std::shared_ptr<Admission> admission) {
  const auto table = Table(admission, 4);
  constexpr int kThreads = 4, kRounds = 60;
  constexpr int64_t kKeys = 3000;
  std::vector<std::unordered_map<int64_t, uint64_t>> counted(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      std::vector<float*> rows(kBatch);
      for (int round = 0; round < kRounds; ++round) {
        const std::vector<int64_t> keys = Draw(&random, kKeys);
        for (const int64_t key : keys) ++counted[static_cast<size_t>(t)][key];
        ReadGuard guard(*table);
        CHECK_OK(table->FindOrInsert(&guard, keys.data(), kBatch, Now{round, 0}, rows.data()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<int64_t, uint64_t> expected;
  for (const auto& part : counted) {
    for (const auto& [key, count] : part) expected[key] += count;
  }
  ReadGuard guard(*table);
  for (const auto& [key, count] : expected) {
    float* row = nullptr;
    table->Find(&key, 1, &row);
    const bool admitted = admission == nullptr || count >= admission->config().min_count;
    CHECK_EQ(row != nullptr, admitted);
    if (admitted) {
      CHECK_EQ(*table->layout().frequency(row), count);
    } else {
      CHECK_EQ(admission->Count(key), count);
    }
  }
}

// Lookups of many threads at max_bytes, with room made by erasing: none fails, the limit holds.
void TestRoom() {
  const auto table = Table(nullptr, 4, 150000);
  table->set_make_room([](EmbeddingTable* self, size_t wanted) {
    std::vector<int64_t> all;
    for (int s = 0; s < self->shards(); ++s) {
      self->ForEach(s, [&](int64_t key, const float*) { all.push_back(key); });
    }
    std::sort(all.begin(), all.end());
    return self->EraseIf(all.data(), std::min(all.size(), std::max(wanted, all.size() / 16)),
                         [](int64_t, const float*) { return true; });
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<int64_t> keys(kBatch);
      std::vector<float*> rows(kBatch);
      for (int round = 0; round < 100; ++round) {
        for (size_t i = 0; i < kBatch; ++i) keys[i] = (round * 4 + t) * 100 + static_cast<int64_t>(i);
        ReadGuard guard(*table);
        CHECK_OK(table->FindOrInsert(&guard, keys.data(), kBatch, Now{round, 0}, rows.data()));
        CHECK(table->bytes() <= 150000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(table->size() > 0);
}

// Bulk writes and a lookup that use several threads of their own.
void TestParallel() {
  const Parallel parallel = [](size_t tasks, const std::function<void(size_t)>& task) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (size_t i = next++; i < tasks; i = next++) task(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  for (const auto& admission : {std::shared_ptr<Admission>(), Counter(2)}) {
    const auto table = Table(admission, 16);
    std::vector<int64_t> keys(60000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i % 25000);
    std::vector<float*> rows(keys.size());
    ReadGuard guard(*table);
    CHECK_OK(table->FindOrInsert(&guard, keys.data(), keys.size(), Now(), rows.data(), parallel));
    for (size_t i = 0; i < keys.size(); ++i) {
      CHECK(rows[i] != nullptr && rows[i] == rows[static_cast<size_t>(keys[i])]);
      CHECK_EQ(*table->layout().frequency(rows[i]), keys[i] < 10000 ? 3u : 2u);
    }
    std::vector<int64_t> more(50000);
    for (size_t i = 0; i < more.size(); ++i) more[i] = static_cast<int64_t>(i);
    CHECK_OK(table->Put(more.data(), more.size(), RowColumns(), parallel));
    CHECK_EQ(table->size(), more.size());
  }
}

}  // namespace
}  // namespace tfctr

int main() {
  for (const int shards : {1, 4}) {
    tfctr::Storm(tfctr::Table(nullptr, shards), 4000).Run(3, 150);
    tfctr::Storm(tfctr::Table(tfctr::Counter(3), shards), 4000).Run(3, 150);
  }
  tfctr::TestCounts(nullptr);
  tfctr::TestCounts(tfctr::Counter(5));
  tfctr::TestRoom();
  tfctr::TestParallel();
  return 0;
}
