#include "tfctr/core/embedding/config.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "tfctr/core/storage/json.h"

namespace tfctr {
namespace {

using Kind = Json::Kind;

// The members of one JSON object, taken one by one; whatever is left over at the end is unknown. The first error stays.
class Members {
 public:
  Members(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (object.kind != Kind::kMap) Fail("must be an object");
  }

  const Json* Find(const char* name) {
    taken_.insert(name);
    const auto it = object_.map.find(name);
    return it == object_.map.end() || it->second.kind == Kind::kNull ? nullptr : &it->second;
  }

  void Text(const char* name, std::string* to) {
    const Json* json = Find(name);
    if (json == nullptr) return;
    if (json->kind != Kind::kText) return Fail(name, "must be a string");
    *to = json->text;
  }

  void Flag(const char* name, bool* to) {
    const Json* json = Find(name);
    if (json == nullptr) return;
    if (json->kind != Kind::kBool) return Fail(name, "must be true or false");
    *to = json->flag;
  }

  template <typename Float>
  void Real(const char* name, Float* to) {
    const Json* json = Find(name);
    if (json == nullptr) return;
    if (json->kind != Kind::kNumber || !std::isfinite(static_cast<Float>(json->number))) {
      return Fail(name, "must be a finite number");
    }
    *to = static_cast<Float>(json->number);
  }

  template <typename Integer>
  void Whole(const char* name, Integer* to) {
    const Json* json = Find(name);
    if (json != nullptr) Whole(name, *json, to);
  }

  template <typename Integer>
  void Whole(const char* name, const Json& json, Integer* to) {
    if (json.kind == Kind::kText) {
      const char* end = json.text.data() + json.text.size();
      const auto [at, error] = std::from_chars(json.text.data(), end, *to);
      if (error == std::errc() && at == end && !json.text.empty()) return;
    } else if (json.kind == Kind::kNumber && std::trunc(json.number) == json.number &&
               std::abs(json.number) <= 9007199254740992.0 &&
               json.number >= static_cast<double>(std::numeric_limits<Integer>::min()) &&
               json.number <= static_cast<double>(std::numeric_limits<Integer>::max())) {
      *to = static_cast<Integer>(json.number);
      return;
    }
    Fail(name, "must be an integer (a number, or digits in a string) of " + std::to_string(sizeof(Integer) * 8) +
                   (std::is_signed_v<Integer> ? " bits" : " bits, not negative"));
  }

  const std::vector<Json>* List(const char* name) {
    const Json* json = Find(name);
    if (json == nullptr) return nullptr;
    if (json->kind == Kind::kList) return &json->list;
    Fail(name, "must be a list");
    return nullptr;
  }

  void Fail(const std::string& name, const std::string& what) { Fail("'" + name + "' " + what); }
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = Status::Invalid(where_ + ": " + what);
  }

  // The first error, or a member that nobody asked for.
  Status Done() {
    for (const auto& member : object_.map) {
      if (taken_.count(member.first) == 0) Fail(member.first, "is not known to this version of tfctr");
    }
    return status_;
  }

 private:
  const Json& object_;
  const std::string where_;
  std::set<std::string> taken_;
  Status status_;
};

Status ReadInitializer(const Json& json, const std::string& where, InitializerConfig* to) {
  Members members(json, where + ": initializer");
  std::string kind;
  members.Text("kind", &kind);
  if (kind == "uniform") {
    to->kind = InitializerConfig::Kind::kUniform;
    members.Real("low", &to->a);
    members.Real("high", &to->b);
  } else if (kind == "normal" || kind == "truncated_normal") {
    to->kind = kind == "normal" ? InitializerConfig::Kind::kNormal : InitializerConfig::Kind::kTruncatedNormal;
    to->a = 0.0f;
    members.Real("mean", &to->a);
    members.Real("stddev", &to->b);
  } else if (kind == "constant") {
    to->kind = InitializerConfig::Kind::kConstant;
    to->a = 0.0f;
    members.Real("value", &to->a);
  } else {
    members.Fail("kind", "is '" + kind + "', expected uniform, normal, truncated_normal or constant");
  }
  return members.Done();
}

Status ReadOptimizer(const Json& json, const std::string& where, OptimizerConfig* to) {
  Members members(json, where + ": optimizer");
  std::string kind;
  members.Text("kind", &kind);
  const Result<OptimizerConfig::Kind> known = OptimizerKind(kind);
  if (!known.ok()) return Status::Invalid(where + ": optimizer: " + known.status().message);
  to->kind = known.value();
  members.Real("epsilon", &to->epsilon);
  members.Real("initial_accumulator_value", &to->initial_accumulator);
  members.Real("beta_1", &to->beta1);
  members.Real("beta_2", &to->beta2);
  members.Real("weight_decay", &to->weight_decay);
  members.Real("learning_rate_power", &to->learning_rate_power);
  members.Real("l1_regularization_strength", &to->l1);
  members.Real("l2_regularization_strength", &to->l2);
  members.Real("l2_shrinkage_regularization_strength", &to->l2_shrinkage);
  members.Real("beta", &to->beta);
  members.Real("accumulator_decay_rate", &to->decay_rate);
  members.Whole("accumulator_decay_steps", &to->decay_steps);
  TFCTR_RETURN_IF_ERROR(members.Done());
  const Status fits = CheckOptimizer(*to);
  return fits.ok() ? fits : Status::Invalid(where + ": " + fits.message);
}

Status ReadClip(const Json& json, const std::string& where, ClipConfig* to) {
  Members members(json, where + ": clip");
  std::string kind;
  members.Text("kind", &kind);
  members.Real("limit", &to->limit);
  if (kind == "value") {
    to->kind = ClipConfig::Kind::kValue;
  } else if (kind == "row_norm") {
    to->kind = ClipConfig::Kind::kNorm;
  } else if (kind == "norm") {
    to->kind = ClipConfig::Kind::kGlobalNorm;
  } else {
    members.Fail("kind", "is '" + kind + "', expected value, row_norm or norm");
  }
  if (!(to->limit > 0.0f)) members.Fail("limit", "must be above 0");
  return members.Done();
}

Status ReadAdmission(const Json& json, const std::string& where, AdmissionConfig* to) {
  Members members(json, where + ": admission");
  std::string kind;
  members.Text("kind", &kind);
  members.Whole("min_count", &to->min_count);
  if (kind == "counter") {
    to->kind = AdmissionConfig::Kind::kCounter;
  } else if (kind == "bloom") {
    to->kind = AdmissionConfig::Kind::kBloom;
    members.Whole("expected_keys", &to->expected_keys);
    members.Real("false_positive_rate", &to->false_positive_rate);
    members.Whole("counter_bits", &to->counter_bits);
    members.Whole("reset_every_steps", &to->reset_every_steps);
  } else {
    members.Fail("kind", "is '" + kind + "', expected counter or bloom");
  }
  return members.Done();
}

void ReadProtectedKeys(Members* members, EvictionRule* rule) {
  const std::vector<Json>* keys = members->List("protected_keys");
  if (keys == nullptr) return;
  for (const Json& key : *keys) {
    rule->protected_keys.push_back(0);
    members->Whole("protected_keys", key, &rule->protected_keys.back());
  }
}

Status ReadRule(const Json& json, const std::string& where, EvictionRule* rule) {
  Members members(json, where);
  std::string kind;
  members.Text("kind", &kind);
  members.Whole("min_rows", &rule->min_rows);
  ReadProtectedKeys(&members, rule);
  if (kind == "step") {
    rule->kind = EvictionRule::Kind::kStep;
    members.Whole("steps_to_live", &rule->steps_to_live);
  } else if (kind == "ttl") {
    rule->kind = EvictionRule::Kind::kTtl;
    double seconds = 0.0;
    members.Real("seconds", &seconds);
    if (!(seconds >= 0.0 && seconds <= 1e12)) members.Fail("seconds", "must be between 0 and 1e12");
    rule->ttl_ms = std::llround(seconds * 1000.0);
  } else if (kind == "l2") {
    rule->kind = EvictionRule::Kind::kL2;
    members.Real("threshold", &rule->threshold);
  } else if (kind == "capacity") {
    std::string order = "lru";
    members.Text("order", &order);
    if (order != "lru" && order != "lfu") members.Fail("order", "is '" + order + "', expected lru or lfu");
    rule->kind = order == "lfu" ? EvictionRule::Kind::kCapacityLfu : EvictionRule::Kind::kCapacityLru;
    members.Whole("max_rows", &rule->max_rows);
  } else {
    members.Fail("kind", "is '" + kind + "', expected step, ttl, l2 or capacity");
  }
  return members.Done();
}

void ReadDefaultValue(Members* members, EvConfig* config) {
  config->default_value.assign(static_cast<size_t>(config->dim), 0.0f);
  const std::vector<Json>* list = members->List("default_value");
  if (list == nullptr) return;
  if (list->size() != 1 && list->size() != config->default_value.size()) {
    return members->Fail("default_value", "has " + std::to_string(list->size()) + " numbers, expected 1 or dim (" +
                                              std::to_string(config->dim) + ")");
  }
  for (size_t i = 0; i < config->default_value.size(); ++i) {
    const Json& number = (*list)[list->size() == 1 ? 0 : i];
    const float value = static_cast<float>(number.number);
    if (number.kind != Kind::kNumber || !std::isfinite(value)) {
      return members->Fail("default_value", "must hold finite numbers");
    }
    config->default_value[i] = value;
  }
}

Status ReadParts(Members* members, const std::string& where, EvConfig* config) {
  if (const Json* json = members->Find("initializer")) {
    TFCTR_RETURN_IF_ERROR(ReadInitializer(*json, where, &config->initializer));
  }
  if (const Json* json = members->Find("optimizer")) {
    config->has_optimizer = true;
    TFCTR_RETURN_IF_ERROR(ReadOptimizer(*json, where, &config->optimizer));
  }
  if (const Json* json = members->Find("clip")) TFCTR_RETURN_IF_ERROR(ReadClip(*json, where, &config->clip));
  if (const Json* json = members->Find("admission")) {
    TFCTR_RETURN_IF_ERROR(ReadAdmission(*json, where, &config->admission));
  }
  const std::vector<Json>* rules = members->List("eviction");
  for (size_t i = 0; rules != nullptr && i < rules->size(); ++i) {
    config->eviction.emplace_back();
    TFCTR_RETURN_IF_ERROR(
        ReadRule((*rules)[i], where + ": eviction[" + std::to_string(i) + "]", &config->eviction.back()));
  }
  return Status::Ok();
}

// A counter that eviction judges, or a delta saves, needs the same moments as a row.
void KeepMomentsOfCounters(EvConfig* config) {
  config->admission.last_step = config->last_step;
  config->admission.last_time = config->last_time;
  config->admission.changes = config->changes;
}

}  // namespace

Result<EvConfig> ParseEvConfig(std::string_view json) {
  const Result<Json> parsed = ParseJson(json);
  if (!parsed.ok()) return Status::Invalid("the config of an embedding variable " + parsed.status().message);
  EvConfig config;
  std::string where = "embedding variable";
  if (const auto it = parsed.value().map.find("name"); it != parsed.value().map.end()) {
    where += " '" + it->second.text + "'";
  }
  Members members(parsed.value(), where);
  int format = 0;
  members.Whole("format", &format);
  if (format != kEvConfigFormat) {
    return Status::Invalid(where + ": its config has format " + std::to_string(format) +
                           ", this version of tfctr reads " + std::to_string(kEvConfigFormat));
  }
  members.Text("name", &config.name);
  members.Whole("dim", &config.dim);
  members.Whole("shards", &config.shards);
  members.Whole("seed", &config.initializer.seed);
  if (config.dim < 1 || config.dim > RowLayout::kMaxWidth) {
    members.Fail("dim", "is " + std::to_string(config.dim) + ", expected 1 to " + std::to_string(RowLayout::kMaxWidth));
    return members.Done();
  }
  ReadDefaultValue(&members, &config);
  members.Whole("evict_every_steps", &config.evict_every_steps);
  members.Flag("evict_on_save", &config.evict_on_save);
  members.Flag("frequency", &config.frequency);
  members.Flag("last_step", &config.last_step);
  members.Flag("last_time", &config.last_time);
  members.Flag("changes", &config.changes);
  members.Whole("max_bytes", &config.max_bytes);
  members.Whole("expected_rows", &config.expected_rows);
  if (config.evict_every_steps < 0) members.Fail("evict_every_steps", "must not be negative");
  TFCTR_RETURN_IF_ERROR(ReadParts(&members, where, &config));
  TFCTR_RETURN_IF_ERROR(members.Done());
  if (const Status fits = RowInitializer::Check(config.initializer, config.dim); !fits.ok()) {
    return Status::Invalid(where + ": " + fits.message);
  }
  KeepMomentsOfCounters(&config);
  return config;
}

Result<RowLayout> LayoutOf(const EvConfig& config) {
  std::vector<SlotSpec> slots;
  if (config.has_optimizer) slots = SlotsOf(config.optimizer, config.dim);
  return RowLayout::Make(config.dim, std::move(slots), config.frequency, config.last_step, config.last_time,
                         config.changes);
}

Result<uint64_t> CounterBytes(const EvConfig& config) {
  if (config.admission.kind != AdmissionConfig::Kind::kCounter) return uint64_t{0};
  Result<std::shared_ptr<Admission>> admission = Admission::Create(config.admission);
  if (!admission.ok()) return admission.status();
  return admission.value()->bytes_per_key();
}

Result<std::shared_ptr<EmbeddingTable>> MakeTable(const EvConfig& config) {
  const std::string where = "embedding variable '" + config.name + "': ";
  Result<RowLayout> layout = LayoutOf(config);
  if (!layout.ok()) return Status::Invalid(where + layout.status().message);
  Result<std::shared_ptr<Admission>> admission = Admission::Create(config.admission);
  if (!admission.ok()) return Status{admission.status().code, where + admission.status().message};
  TableConfig wanted;
  wanted.name = config.name;
  wanted.layout = layout.Take();
  wanted.init = config.initializer;
  wanted.default_value = config.default_value;
  wanted.admission = admission.Take();
  wanted.max_bytes = config.max_bytes;
  wanted.shards = config.shards;
  wanted.reserve_rows = config.expected_rows;
  Result<std::shared_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(wanted));
  if (!table.ok()) return table;
  TFCTR_RETURN_IF_ERROR(CheckRules(*table.value(), config.eviction));
  table.value()->set_make_room(
      [rules = config.eviction](EmbeddingTable* full, size_t rows) { return EvictForRoom(full, rules, rows); });
  return table;
}

}  // namespace tfctr
