#include "tfctr/core/storage/admission.h"

#include <string>

#include "tfctr/core/storage/admission_impl.h"

namespace tfctr {
namespace {

Status CheckBloom(const AdmissionConfig& config) {
  if (config.expected_keys == 0) return Status::Invalid("BloomAdmission: expected_keys must be at least 1");
  if (!(config.false_positive_rate > 0.0 && config.false_positive_rate < 1.0)) {
    return Status::Invalid("BloomAdmission: false_positive_rate must be between 0 and 1, but is " +
                           std::to_string(config.false_positive_rate));
  }
  const int bits = config.counter_bits;
  if (bits != 8 && bits != 16 && bits != 32) {
    return Status::Invalid("BloomAdmission: counter_bits must be 8, 16 or 32, but is " + std::to_string(bits));
  }
  const uint64_t most = (uint64_t{1} << bits) - 1;
  if (config.min_count > most) {
    return Status::Invalid("BloomAdmission: min_count " + std::to_string(config.min_count) + " is never reached by " +
                           std::to_string(bits) + "-bit counters, which stop at " + std::to_string(most));
  }
  if (config.reset_every_steps < 0) {
    return Status::Invalid("BloomAdmission: reset_every_steps must be 0 (never) or more, but is " +
                           std::to_string(config.reset_every_steps));
  }
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<Admission>> Admission::Create(const AdmissionConfig& config) {
  if (config.kind == AdmissionConfig::Kind::kNone) return std::shared_ptr<Admission>();
  if (config.min_count == 0) return Status::Invalid("admission: min_count must be at least 1");
  if (config.kind == AdmissionConfig::Kind::kCounter) return CreateCounterAdmission(config);
  if (Status status = CheckBloom(config); !status.ok()) return status;
  return CreateBloomAdmission(config);
}

void Admission::Visit(size_t, const std::function<void(const KeyCount&)>&) const {}

size_t Admission::EraseIf(const int64_t*, size_t, const std::function<bool(const KeyCount&)>&) { return 0; }

bool Admission::VisitChanged(size_t, uint32_t, const std::function<void(const KeyCount&)>&,
                             std::vector<int64_t>*) const {
  return false;
}

void Admission::ReadState(uint64_t, uint64_t, uint8_t*) const {}

Status Admission::WriteState(uint64_t, uint64_t, const uint8_t*) {
  return Status::Invalid("the cells of a Bloom filter can't be restored into an admission by exact counters");
}

}  // namespace tfctr
