// Admission: both kinds against a map over random traffic, the whole key range, saturation, resets, saved state, bytes,
// and threads.
#include "tfctr/core/storage/admission.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

using Kind = AdmissionConfig::Kind;
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::shared_ptr<Admission> Make(const AdmissionConfig& config) {
  auto made = Admission::Create(config);
  CHECK_OK(made.status());
  return made.Take();
}

AdmissionConfig Counter(uint32_t min_count, bool stamps = true) {
  AdmissionConfig config;
  config.kind = Kind::kCounter;
  config.min_count = min_count;
  config.last_step = config.last_time = stamps;
  return config;
}

AdmissionConfig Bloom(uint32_t min_count, uint64_t expected_keys, double rate = 0.01, int bits = 16,
                      int64_t reset = 0) {
  AdmissionConfig config;
  config.kind = Kind::kBloom;
  config.min_count = min_count;
  config.expected_keys = expected_keys;
  config.false_positive_rate = rate;
  config.counter_bits = bits;
  config.reset_every_steps = reset;
  return config;
}

struct Answer {
  uint8_t admitted = 2;
  uint32_t total = 0;
};

Answer AddOne(Admission* admission, int64_t key, uint32_t count, Now now = {}) {
  Answer answer;
  admission->Add(&key, &count, 1, now, &answer.admitted, &answer.total);
  return answer;
}

void Refusals() {
  CHECK(Make(AdmissionConfig()) == nullptr);
  CHECK_FAILS(Admission::Create(Counter(0)).status(), Code::kInvalid, "min_count must be at least 1");
  CHECK_FAILS(Admission::Create(Bloom(0, 5)).status(), Code::kInvalid, "min_count must be at least 1");
  CHECK_FAILS(Admission::Create(Bloom(1, 0)).status(), Code::kInvalid, "expected_keys");
  for (double rate : {0.0, 1.0, -1.0, std::nan("")}) {
    CHECK_FAILS(Admission::Create(Bloom(1, 5, rate)).status(), Code::kInvalid, "false_positive_rate");
  }
  CHECK_FAILS(Admission::Create(Bloom(1, 5, 0.1, 12)).status(), Code::kInvalid, "counter_bits must be 8, 16 or 32");
  CHECK_FAILS(Admission::Create(Bloom(256, 5, 0.1, 8)).status(), Code::kInvalid, "min_count 256 is never reached");
  CHECK_OK(Admission::Create(Bloom(255, 5, 0.1, 8)).status());
  CHECK_FAILS(Admission::Create(Bloom(1, 5, 0.1, 8, -1)).status(), Code::kInvalid, "reset_every_steps");
  CHECK_FAILS(Admission::Create(Bloom(1, kMax)).status(), Code::kInvalid, "expected_keys");
}

// Reaches, not exceeds: one by one, at once, and in parts.
void Threshold() {
  for (const AdmissionConfig& config : {Counter(3), Bloom(3, 1000)}) {
    for (int64_t key : {kMin, kMax, int64_t{-2}, int64_t{-1}, int64_t{0}, int64_t{1}}) {
      auto admission = Make(config);
      CHECK_EQ(int{AddOne(admission.get(), key, 1).admitted}, 0);
      CHECK_EQ(int{AddOne(admission.get(), key, 1).admitted}, 0);
      CHECK_EQ(admission->Count(key), 2u);
      const Answer third = AddOne(admission.get(), key, 1);
      CHECK_EQ(int{third.admitted}, 1);
      CHECK_EQ(third.total, 3u);
      auto at_once = Make(config);
      CHECK_EQ(int{AddOne(at_once.get(), key, 3).admitted}, 1);
      CHECK_EQ(AddOne(at_once.get(), key, 0).total, 3u);
      auto beyond = Make(config);
      CHECK_EQ(int{AddOne(beyond.get(), key, 2).admitted}, 0);
      CHECK_EQ(AddOne(beyond.get(), key, 5).total, 7u);
    }
  }
}

void Saturation() {
  auto bytes = Make(Bloom(200, 100, 0.01, 8));
  CHECK_EQ(AddOne(bytes.get(), 7, 300).total, 255u);  // 300 in one batch must not wrap to 44
  CHECK_EQ(AddOne(bytes.get(), 7, 1).total, 255u);
  CHECK_EQ(int{AddOne(bytes.get(), 7, 1).admitted}, 1);
  auto words = Make(Bloom(2, 100, 0.01, 16));
  CHECK_EQ(AddOne(words.get(), 7, 65534).total, 65534u);
  CHECK_EQ(AddOne(words.get(), 7, 9).total, 65535u);
  for (auto& admission : {Make(Counter(2)), Make(Bloom(2, 100, 0.01, 32))}) {
    CHECK_EQ(AddOne(admission.get(), 7, 0xfffffffeu).total, 0xfffffffeu);
    CHECK_EQ(AddOne(admission.get(), 7, 1).total, 0xffffffffu);
    CHECK_EQ(AddOne(admission.get(), 7, 0xffffffffu).total, 0xffffffffu);
  }
}

// Counters against std::map over random calls, with removals of every kind.
void CounterAgainstMap() {
  std::mt19937_64 random(1);
  auto admission = Make(Counter(5));
  std::map<int64_t, KeyCount> expected;
  for (int64_t step = 0; step < 3000; ++step) {
    std::map<int64_t, uint32_t> batch;
    for (int i = 0; i < 40; ++i) {
      const int64_t id = static_cast<int64_t>(random() % (step < 1500 ? 3000 : 300)) - 100;
      ++batch[id == 0 ? kMin : id == 1 ? kMax : id];
    }
    std::vector<int64_t> keys;
    std::vector<uint32_t> counts;
    for (const auto& [key, count] : batch) {
      keys.push_back(key);
      counts.push_back(count);
    }
    std::vector<uint8_t> admitted(keys.size(), 2);
    std::vector<uint32_t> totals(keys.size());
    admission->Add(keys.data(), counts.data(), keys.size(), Now{step, 10 * step}, admitted.data(), totals.data());
    std::vector<int64_t> gone;
    for (size_t i = 0; i < keys.size(); ++i) {
      KeyCount& entry = expected[keys[i]];
      entry = {keys[i], entry.count + counts[i], step, 10 * step};
      CHECK_EQ(totals[i], entry.count);
      CHECK_EQ(admitted[i] != 0, entry.count >= 5);
      if (admitted[i]) gone.push_back(keys[i]);
    }
    gone.push_back(123456789);  // never counted
    admission->Forget(gone.data(), gone.size());
    for (int64_t key : gone) expected.erase(key);
    if (step % 500 == 499) {  // what is old goes, judged again where it lies
      std::vector<int64_t> all{kMin + 5};
      for (const auto& [key, entry] : expected) all.push_back(key);
      size_t old = 0;
      for (const auto& [key, entry] : expected) old += entry.last_step < step - 100;
      CHECK_EQ(admission->EraseIf(all.data(), all.size(),
                                  [&](const KeyCount& entry) { return entry.last_step < step - 100; }),
               old);
      for (auto at = expected.begin(); at != expected.end();) {
        at = at->second.last_step < step - 100 ? expected.erase(at) : std::next(at);
      }
    }
    CHECK_EQ(admission->size(), expected.size());
  }
  auto copy = Make(Counter(5));
  size_t seen = 0;
  for (size_t part = 0; part < admission->parts(); ++part) {
    std::vector<KeyCount> counts;
    admission->Visit(part, [&](const KeyCount& entry) { counts.push_back(entry); });
    for (const KeyCount& entry : counts) {
      const KeyCount& want = expected.at(entry.key);
      CHECK_EQ(entry.count, want.count);
      CHECK_EQ(entry.last_step, want.last_step);
      CHECK_EQ(entry.last_time_ms, want.last_time_ms);
    }
    seen += counts.size();
    copy->Put(counts.data(), counts.size());
  }
  CHECK_EQ(seen, expected.size());
  CHECK_EQ(copy->size(), expected.size());
  for (const auto& [key, entry] : expected) CHECK_EQ(copy->Count(key), entry.count);
  copy->Clear();
  CHECK_EQ(copy->size(), 0u);
  CHECK_EQ(copy->bytes(), Make(Counter(5))->bytes());
}

// bytes() is what the arrays hold: between 1 and 2 times the raw size (filled to 4/5, grown by half).
void CounterBytes() {
  for (bool stamps : {false, true}) {
    auto admission = Make(Counter(1000, stamps));
    const uint64_t empty = admission->bytes();
    std::vector<int64_t> keys(100000);
    std::vector<uint32_t> counts(keys.size(), 1), totals(keys.size());
    std::vector<uint8_t> admitted(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i) * 1000003;
    admission->Add(keys.data(), counts.data(), keys.size(), Now{}, admitted.data(), totals.data());
    const double raw = static_cast<double>(keys.size()) * (stamps ? 28 : 12);
    const double used = static_cast<double>(admission->bytes() - empty);
    CHECK(used > raw * 1.2 && used < raw * 2.0);
    CHECK_EQ(admission->bytes_per_key(), stamps ? 35u : 15u);
    // Half of the keys go, and a third of the memory at least; all go, and almost all of it.
    CHECK_EQ(admission->EraseIf(keys.data(), keys.size() / 2, [](const KeyCount&) { return true; }), keys.size() / 2);
    CHECK(static_cast<double>(admission->bytes() - empty) < used * 0.7);
    for (size_t i = 0; i < keys.size(); ++i) CHECK_EQ(admission->Count(keys[i]), i < keys.size() / 2 ? 0u : 1u);
    admission->Forget(keys.data(), keys.size());
    CHECK_EQ(admission->size(), 0u);
    CHECK(admission->bytes() - empty <= 64 * 16 * 28);
  }
}

// Never less than the truth; too much for no more keys than promised, when the filter is as full as it may be.
void BloomErrors() {
  const uint64_t keys = 50000;
  for (double rate : {0.1, 0.01, 0.001}) {
    auto admission = Make(Bloom(2, keys, rate, 8));
    std::vector<int64_t> ids(keys);
    std::vector<uint32_t> counts(keys, 1), totals(keys);
    std::vector<uint8_t> admitted(keys);
    for (uint64_t i = 0; i < keys; ++i) ids[i] = static_cast<int64_t>(i) - 20000;
    admission->Add(ids.data(), counts.data(), keys, Now{}, admitted.data(), totals.data());
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < keys; ++i) {
      CHECK(totals[i] >= 1);
      CHECK_EQ(admission->Count(ids[i]), totals[i]);
      CHECK_EQ(admitted[i] != 0, totals[i] >= 2);
      wrong += totals[i] > 1;
    }
    uint64_t strangers = 0;
    for (uint64_t i = 0; i < keys; ++i) strangers += admission->Count(static_cast<int64_t>(i) + (int64_t{1} << 40)) > 0;
    std::cout << "bloom " << rate << ": " << static_cast<double>(wrong) / keys << " counted too high, "
              << static_cast<double>(strangers) / keys << " of the never seen above 0" << std::endl;
    CHECK(static_cast<double>(wrong) / keys < 1.15 * rate + 3 * std::sqrt(rate / keys));
    CHECK(static_cast<double>(strangers) / keys < 1.15 * rate + 3 * std::sqrt(rate / keys));
    const double cells = keys * -std::log(rate) / (M_LN2 * M_LN2);
    CHECK(std::abs(static_cast<double>(admission->bytes()) - cells) < 300);
  }
}

void BloomReset() {
  auto admission = Make(Bloom(3, 100, 0.01, 8, 10));
  CHECK_EQ(AddOne(admission.get(), 1, 2, Now{5, 0}).total, 2u);
  CHECK_EQ(AddOne(admission.get(), 2, 1, Now{9, 0}).total, 1u);
  CHECK_EQ(AddOne(admission.get(), 1, 1, Now{10, 0}).total, 1u);  // crossed 10
  CHECK_EQ(admission->Count(2), 0u);
  CHECK_EQ(AddOne(admission.get(), 1, 1, Now{9, 0}).total, 2u);  // a late worker clears nothing
  CHECK_EQ(AddOne(admission.get(), 1, 1, Now{19, 0}).total, 3u);
  CHECK_EQ(AddOne(admission.get(), 1, 1, Now{57, 0}).total, 1u);
  CHECK_EQ(AddOne(admission.get(), 1, 1, Now{59, 0}).total, 2u);
  admission->Clear();
  CHECK_EQ(admission->Count(1), 0u);
}

// The same keys in any order and any cut of the call give the same totals.
void OrderDoesNotMatter() {
  std::mt19937_64 random(3);
  for (const AdmissionConfig& config : {Counter(3), Bloom(3, 50, 0.3, 8)}) {  // the small filter collides a lot
    std::vector<int64_t> keys(200);
    std::vector<uint32_t> counts(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = static_cast<int64_t>(i);
      counts[i] = static_cast<uint32_t>(1 + random() % 3);
    }
    std::map<int64_t, uint32_t> first;
    for (int round = 0; round < 5; ++round) {
      auto admission = Make(config);
      std::vector<size_t> order(keys.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      std::vector<int64_t> shuffled;
      std::vector<uint32_t> amounts;
      for (size_t i : order) {
        shuffled.push_back(keys[i]);
        amounts.push_back(counts[i]);
      }
      std::vector<uint8_t> admitted(keys.size());
      std::vector<uint32_t> totals(keys.size());
      admission->Add(shuffled.data(), amounts.data(), keys.size(), Now{}, admitted.data(), totals.data());
      for (size_t i = 0; i < keys.size(); ++i) {
        const auto [at, fresh] = first.emplace(shuffled[i], totals[i]);
        CHECK(fresh || at->second == totals[i]);
      }
    }
  }
}

void SavedState() {
  const AdmissionConfig config = Bloom(9, 1000, 0.01, 16, 10);
  auto admission = Make(config);
  for (int64_t key = 0; key < 500; ++key) {
    AddOne(admission.get(), key * 7919, static_cast<uint32_t>(key % 9 + 1), Now{25, 0});
  }
  const uint64_t size = admission->state_bytes();
  std::vector<uint8_t> state(size), odd(size);
  admission->ReadState(0, size, state.data());
  for (uint64_t at = 0, take = 1; at < size; at += take, take = take % 97 + 13) {  // ranges cut cells and header
    admission->ReadState(at, std::min(take, size - at), odd.data() + at);
    take = std::min(take, size - at);
  }
  CHECK(state == odd);
  auto copy = Make(config);
  CHECK_OK(copy->WriteState(0, 100, state.data()));
  for (uint64_t at = 100; at < size; at += 501) {
    CHECK_OK(copy->WriteState(at, std::min<uint64_t>(501, size - at), state.data() + at));
  }
  for (int64_t key = 0; key < 500; ++key) CHECK_EQ(copy->Count(key * 7919), admission->Count(key * 7919));
  CHECK_EQ(AddOne(copy.get(), 0, 1, Now{29, 0}).total, 2u);  // the epoch travels
  CHECK_EQ(AddOne(copy.get(), 0, 1, Now{30, 0}).total, 1u);
  CHECK_FAILS(copy->WriteState(size - 1, 2, state.data()), Code::kInvalid, "longer than");
  CHECK_FAILS(copy->WriteState(0, 8, state.data()), Code::kInvalid, "without its header");
  CHECK_FAILS(Make(Bloom(9, 1001, 0.01, 16))->WriteState(0, 100, state.data()), Code::kInvalid, "the saved filter has");
  CHECK_FAILS(Make(Bloom(9, 1000, 0.01, 8))->WriteState(0, 100, state.data()), Code::kInvalid, "of 16 bits");
  CHECK_FAILS(Make(Counter(2))->WriteState(0, 100, state.data()), Code::kInvalid, "exact counters");
  state[0] ^= 1;
  CHECK_FAILS(copy->WriteState(0, 100, state.data()), Code::kInvalid, "not the state");
  const std::vector<KeyCount> counts{{-1, 3}, {kMax, 4}, {5, 0}};  // counters of a checkpoint, into a filter
  auto other = Make(Bloom(9, 1000));
  other->Put(counts.data(), counts.size());
  CHECK_EQ(other->Count(-1), 3u);
  CHECK_EQ(other->Count(kMax), 4u);
  CHECK_EQ(other->Count(5), 0u);
}

// Every occurrence is counted once, whatever the threads do; visits, resets and removals run beside.
void Threads() {
  for (const AdmissionConfig& config : {Counter(0x7fffffff), Bloom(60000, 4000, 0.001, 32)}) {
    auto admission = Make(config);
    constexpr int kThreads = 4, kRounds = 300, kKeys = 64;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < kRounds; ++round) {
          std::vector<int64_t> keys(kKeys);
          std::vector<uint32_t> counts(kKeys, 1), totals(kKeys);
          std::vector<uint8_t> admitted(kKeys);
          for (int i = 0; i < kKeys; ++i) keys[i] = (i * 31 + t + round) % 128;
          admission->Add(keys.data(), counts.data(), keys.size(), Now{round, 0}, admitted.data(), totals.data());
          const int64_t own = 1000 + t;  // comes and goes beside the others
          AddOne(admission.get(), own, 1);
          admission->Forget(&own, 1);
          if (round % 50 == 0) {
            for (size_t part = 0; part < admission->parts(); ++part) admission->Visit(part, [](const KeyCount&) {});
            std::vector<uint8_t> state(std::min<uint64_t>(admission->state_bytes(), 4096));
            admission->ReadState(0, state.size(), state.data());
            CHECK(admission->bytes() > 0);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    uint64_t sum = 0;
    for (int64_t key = 0; key < 128; ++key) sum += admission->Count(key);
    CHECK_EQ(sum, uint64_t{kThreads * kRounds * kKeys});
  }
}

// Threads that cross a reset together clear the cells once: nothing counted after the crossing is lost.
void ThreadsAtAReset() {
  for (int round = 0; round < 50; ++round) {
    auto admission = Make(Bloom(200, 100, 0.01, 8, 10));
    AddOne(admission.get(), 1, 100, Now{9, 0});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) threads.emplace_back([&] { AddOne(admission.get(), 1, 1, Now{10, 0}); });
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(admission->Count(1), 4u);
  }
}

// Milliseconds of putting counts of these keys into a new, growing filter.
double MillisecondsOfPut(const std::vector<KeyCount>& counts) {
  const auto admission = Make(Counter(2));
  const std::clock_t start = std::clock();  // CPU time: others may have the processor meanwhile
  for (size_t at = 0; at < counts.size(); at += 4096) {
    admission->Put(counts.data() + at, std::min<size_t>(4096, counts.size() - at));
  }
  CHECK_EQ(admission->size(), counts.size());
  return 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Counters come out of a table in the order of its hashes. Put into another one as they came out (a restore), they must
// not pile up at the front of its arrays: that took hundreds of times as long.
void OrderOfAnotherTable() {
  const auto admission = Make(Counter(2));
#ifdef __SANITIZE_THREAD__
  constexpr size_t kCounters = 50000;  // one thread: nothing to find here
#else
  constexpr size_t kCounters = 1000000;
#endif
  std::vector<KeyCount> shuffled(kCounters);
  std::mt19937_64 random(1);
  for (KeyCount& count : shuffled) count = KeyCount{static_cast<int64_t>(random()), 1, 0, 0};
  admission->Put(shuffled.data(), shuffled.size());
  std::vector<KeyCount> in_order;
  for (size_t part = 0; part < admission->parts(); ++part) {
    admission->Visit(part, [&](const KeyCount& count) { in_order.push_back(count); });
  }
  CHECK_EQ(in_order.size(), shuffled.size());
  double usual = MillisecondsOfPut(shuffled);
  double ordered = MillisecondsOfPut(in_order);
  for (int again = 0; again < 2; ++again) {
    usual = std::max(usual, MillisecondsOfPut(shuffled));
    ordered = std::min(ordered, MillisecondsOfPut(in_order));
  }
  CHECK(ordered < 8 * usual);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::Refusals();
  tfctr::Threshold();
  tfctr::Saturation();
  tfctr::CounterAgainstMap();
  tfctr::CounterBytes();
  tfctr::BloomErrors();
  tfctr::BloomReset();
  tfctr::OrderDoesNotMatter();
  tfctr::SavedState();
  tfctr::Threads();
  tfctr::ThreadsAtAReset();
  tfctr::OrderOfAnotherTable();
  std::cout << "admission: ok" << std::endl;
}
