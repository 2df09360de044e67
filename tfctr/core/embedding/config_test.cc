// The configuration of an embedding variable: what is read, what is left to defaults, what is refused by name.
#include "tfctr/core/embedding/config.h"

#include <string>

#include "tfctr/core/storage/test_util.h"

namespace tfctr {
namespace {

std::string With(const std::string& members) { return R"({"format": 1, "name": "item", "dim": 2, )" + members + "}"; }

void TestEverythingIsRead() {
  Result<EvConfig> parsed = ParseEvConfig(With(R"(
      "shards": 4, "seed": "18446744073709551615",
      "initializer": {"kind": "truncated_normal", "mean": 0.5, "stddev": 0.25},
      "default_value": [1.5, -2], "optimizer": {"kind": "adam", "beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-6},
      "clip": {"kind": "row_norm", "limit": 2.5},
      "admission": {"kind": "bloom", "min_count": 3, "expected_keys": "9007199254740993", "false_positive_rate": 0.1,
                    "counter_bits": 8, "reset_every_steps": 7},
      "eviction": [{"kind": "step", "steps_to_live": 5, "min_rows": 2, "protected_keys": ["-9223372036854775808", 3]},
                   {"kind": "ttl", "seconds": 1.5}, {"kind": "l2", "threshold": 0.1},
                   {"kind": "capacity", "max_rows": 10, "order": "lfu"}, {"kind": "capacity", "max_rows": 9}],
      "evict_every_steps": 100, "evict_on_save": true, "frequency": true, "last_step": true, "last_time": true,
      "max_bytes": 1000000, "expected_rows": 50)"));
  CHECK_OK(parsed.status());
  const EvConfig& config = parsed.value();
  CHECK_EQ(config.name, std::string("item"));
  CHECK_EQ(config.shards, 4);
  CHECK_EQ(config.initializer.seed, UINT64_MAX);
  CHECK(config.initializer.kind == InitializerConfig::Kind::kTruncatedNormal);
  CHECK_EQ(config.initializer.a, 0.5f);
  CHECK_EQ(config.initializer.b, 0.25f);
  CHECK_EQ(config.default_value[1], -2.0f);
  CHECK(config.has_optimizer && config.optimizer.kind == OptimizerConfig::Kind::kAdam);
  CHECK_EQ(config.optimizer.beta1, 0.8);
  CHECK(config.clip.kind == ClipConfig::Kind::kNorm);
  CHECK(config.admission.kind == AdmissionConfig::Kind::kBloom);
  CHECK_EQ(config.admission.expected_keys, uint64_t{9007199254740993});
  CHECK(config.admission.last_step && config.admission.last_time);
  CHECK_EQ(config.eviction.size(), size_t{5});
  CHECK_EQ(config.eviction[0].protected_keys[0], INT64_MIN);
  CHECK_EQ(config.eviction[0].protected_keys[1], int64_t{3});
  CHECK_EQ(config.eviction[0].min_rows, uint64_t{2});
  CHECK_EQ(config.eviction[1].ttl_ms, int64_t{1500});
  CHECK(config.eviction[3].kind == EvictionRule::Kind::kCapacityLfu);
  CHECK(config.eviction[4].kind == EvictionRule::Kind::kCapacityLru);
  CHECK_EQ(config.evict_every_steps, int64_t{100});
  CHECK(config.evict_on_save && config.frequency);
  CHECK_EQ(config.max_bytes, uint64_t{1000000});
  CHECK_EQ(config.expected_rows, uint64_t{50});
}

void TestDefaults() {
  Result<EvConfig> parsed = ParseEvConfig(With(R"("optimizer": null, "admission": null, "clip": null)"));
  CHECK_OK(parsed.status());
  CHECK_EQ(parsed.value().shards, 16);
  CHECK(!parsed.value().has_optimizer);
  CHECK_EQ(parsed.value().default_value.size(), size_t{2});
  CHECK_EQ(parsed.value().default_value[1], 0.0f);
  CHECK(parsed.value().admission.kind == AdmissionConfig::Kind::kNone);
  CHECK_EQ(parsed.value().initializer.a, -0.05f);
  Result<std::shared_ptr<EmbeddingTable>> table = MakeTable(parsed.value());
  CHECK_OK(table.status());
  CHECK_EQ(table.value()->layout().stride(), 2 * sizeof(float));
  CHECK_EQ(ParseEvConfig(With(R"("default_value": [3])")).value().default_value[1], 3.0f);
}

void TestRefused() {
  const auto refused = [](const std::string& members) { return ParseEvConfig(With(members)).status(); };
  CHECK_FAILS(ParseEvConfig("[").status(), Code::kInvalid, "no JSON");
  CHECK_FAILS(ParseEvConfig(R"({"format": 2, "name": "x"})").status(), Code::kInvalid, "'x': its config has format 2");
  CHECK_FAILS(refused(R"("shards": 1.5)"), Code::kInvalid, "'item': 'shards' must be an integer");
  CHECK_FAILS(refused(R"("seed": -1)"), Code::kInvalid, "'seed' must be an integer");
  CHECK_FAILS(refused(R"("seed": "12x")"), Code::kInvalid, "'seed'");
  CHECK_FAILS(refused(R"("seed": "18446744073709551616")"), Code::kInvalid, "'seed'");
  CHECK_FAILS(refused(R"("max_bytes": 1e300)"), Code::kInvalid, "'max_bytes'");
  CHECK_FAILS(refused(R"("frequency": 1)"), Code::kInvalid, "'frequency' must be true or false");
  CHECK_FAILS(refused(R"("colour": 1)"), Code::kInvalid, "'colour' is not known");
  CHECK_FAILS(refused(R"("initializer": {"kind": "uniform", "mean": 1})"), Code::kInvalid, "'mean' is not known");
  CHECK_FAILS(refused(R"("initializer": {"kind": "uniform", "low": 2, "high": 1})"), Code::kInvalid, "'item'");
  CHECK_FAILS(refused(R"("initializer": {"kind": "he"})"), Code::kInvalid, "'kind' is 'he'");
  CHECK_FAILS(refused(R"("optimizer": {"kind": "adam", "beta_1": 2})"), Code::kInvalid, "'item'");
  CHECK_FAILS(refused(R"("clip": {"kind": "norm"})"), Code::kInvalid, "'limit' must be above 0");
  CHECK_FAILS(refused(R"("eviction": [{"kind": "ttl", "seconds": -1}])"), Code::kInvalid, "eviction[0]: 'seconds'");
  CHECK_FAILS(refused(R"("eviction": [{"kind": "capacity", "max_rows": 1, "order": "fifo"}])"), Code::kInvalid,
              "'order' is 'fifo'");
  CHECK_FAILS(refused(R"("eviction": [{"kind": "l2", "threshold": 1, "protected_keys": ["a"]}])"), Code::kInvalid,
              "'protected_keys'");
  CHECK_FAILS(refused(R"("evict_every_steps": -1)"), Code::kInvalid, "'evict_every_steps' must not be negative");
  // Rules that need what the rows don't hold are refused with the table.
  const Result<EvConfig> parsed = ParseEvConfig(With(R"("eviction": [{"kind": "step", "steps_to_live": 1}])"));
  CHECK_OK(parsed.status());
  CHECK(!MakeTable(parsed.value()).ok());
}

void TestCounterBytes() {
  const auto bytes = [](const std::string& members) {
    const Result<EvConfig> config = ParseEvConfig(With(members));
    CHECK_OK(config.status());
    const Result<uint64_t> counter = CounterBytes(config.value());
    CHECK_OK(counter.status());
    return counter.value();
  };
  CHECK_EQ(bytes(R"("frequency": true)"), 0u);
  CHECK_EQ(bytes(R"("admission": {"kind": "bloom", "min_count": 2, "expected_keys": 1000})"), 0u);
  CHECK_EQ(bytes(R"("admission": {"kind": "counter", "min_count": 2})"), 15u);
  CHECK_EQ(bytes(R"("admission": {"kind": "counter", "min_count": 2}, "last_step": true, "last_time": true)"), 35u);
}

}  // namespace
}  // namespace tfctr

int main() {
  tfctr::TestEverythingIsRead();
  tfctr::TestDefaults();
  tfctr::TestRefused();
  tfctr::TestCounterBytes();
  return 0;
}
