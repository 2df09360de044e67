// Work that lookups of one group have in common. Two kinds:
// - Ids: several lookups read the same tensor through the same steps, and the steps are dear (a hash, a vocabulary), as
//   in the wide and the deep part of a model. The ids are resolved once, into memory of the call.
// - Results: a lookup equals an earlier one in all but its name and its place. It does no work of its own; its columns
//   are copied when the earlier one is done, errors included: what is wrong is said of the earlier one.
#include <algorithm>
#include <cstring>

#include "tfctr/core/lookup/fused_lookup.h"
#include "tfctr/core/lookup/runner.h"
#include "tfctr/core/lookup/scratch.h"

namespace tfctr {
namespace {

constexpr int64_t kChunkValues = 1024;  // 8 KB of ids

bool SameSource(const Source& a, const Source& b) { return a.packed == b.packed && a.index == b.index; }

bool SameText(const std::optional<TextValue>& a, const std::optional<TextValue>& b) {
  return a.has_value() == b.has_value() && (!a || a->text == b->text);
}

bool SameStep(const Step& a, const Step& b) {
  return a.kind == b.kind && a.ints == b.ints && a.floats == b.floats && a.dtype == b.dtype && a.key[0] == b.key[0] &&
         a.key[1] == b.key[1] && a.value.text == b.value.text;
}

bool SameSteps(const LookupSpec& a, const LookupSpec& b, size_t count) {
  return std::equal(a.steps.begin(), a.steps.begin() + static_cast<int64_t>(count), b.steps.begin(), SameStep);
}

// Every field but name, output and column.
bool SameLookup(const LookupSpec& a, const LookupSpec& b) {
  return a.table == b.table && a.table_rows == b.table_rows && a.table_width == b.table_width && a.hashed == b.hashed &&
         a.table_dtype == b.table_dtype && a.storage == b.storage && a.form == b.form && SameSource(a.ids, b.ids) &&
         SameSource(a.rows, b.rows) && SameSource(a.shape, b.shape) && SameSource(a.weights, b.weights) &&
         SameSource(a.mask, b.mask) && SameText(a.mask_value, b.mask_value) && a.steps.size() == b.steps.size() &&
         SameSteps(a, b, a.steps.size()) && a.prune_weights == b.prune_weights && a.fill_id == b.fill_id &&
         a.max_norm == b.max_norm && a.combiner == b.combiner && a.accumulation == b.accumulation &&
         a.denominator == b.denominator && a.denominator_eps == b.denominator_eps && a.empty == b.empty &&
         a.sort_rows == b.sort_rows && a.ids_per_row == b.ids_per_row;
}

bool HasDearStep(const Feature& f) {
  return f.hashed || std::any_of(f.spec.steps.begin(), f.spec.steps.begin() + static_cast<int64_t>(f.step_count),
                                 [](const Step& s) {
                                   return s.kind == StepKind::kHashFast || s.kind == StepKind::kHashStrong ||
                                          s.kind == StepKind::kVocab || s.kind == StepKind::kVocabOov ||
                                          s.kind == StepKind::kFingerprint;
                                 });
}

}  // namespace

void FusedLookup::FindSharedWork() {
  const auto lookups = static_cast<int32_t>(group_.lookups.size());
  std::vector<std::vector<int32_t>> groups;
  for (int32_t i = 0; i < lookups; ++i) {
    Feature& f = features_[i];
    const bool dear = HasDearStep(f);
    // One row copied from a table costs no more than one copied from an output.
    if (dear || f.spec.combiner != Combiner::kNone) {
      for (int32_t j = 0; j < i && f.same_as < 0; ++j) {
        if (features_[j].same_as < 0 && SameLookup(features_[j].spec, f.spec)) f.same_as = j;
      }
    }
    if (f.same_as >= 0 || !dear || !f.fast) continue;
    const auto same = [&](const std::vector<int32_t>& group) {
      const Feature& first = features_[group.front()];
      if (first.hashed != f.hashed ||
          (f.hashed && (first.spec.table != f.spec.table || first.prune_negative != f.prune_negative)))
        return false;
      return SameSource(first.spec.ids, f.spec.ids) && first.step_count == f.step_count &&
             SameSteps(first.spec, f.spec, f.step_count);
    };
    const auto known = std::find_if(groups.begin(), groups.end(), same);
    if (known != groups.end()) {
      known->push_back(i);
    } else {
      groups.push_back({i});
    }
  }
  for (std::vector<int32_t>& group : groups) {
    if (group.size() < 2) continue;
    for (const int32_t i : group) features_[i].shared_ids = static_cast<int32_t>(shared_ids_.size());
    shared_ids_.push_back(std::move(group));
  }
}

void FusedLookup::PrepareShared(Call* call) const {
  call->id_work_ = 0;
  call->shared_ids_.resize(shared_ids_.size());
  for (BoundFeature& b : call->features_) b.ready_ids = nullptr;
  for (size_t k = 0; k < shared_ids_.size(); ++k) {
    const int64_t values = call->features_[shared_ids_[k].front()].values;
    if (static_cast<int64_t>(call->shared_ids_[k].size()) < values) call->shared_ids_[k].resize(values);
    for (const int32_t i : shared_ids_[k]) {
      call->features_[i].ready_ids = call->shared_ids_[k].data();
      if (features_[i].hashed) call->features_[i].renumber = false;
    }
    call->id_work_ += values;
  }
}

void FusedLookup::RunIds(int64_t begin, int64_t end, Call* call) const {
  IdBlock& block = Scratch::OfThread().ids;
  int64_t start = 0;  // of the ids at hand, in work units
  for (size_t k = 0; k < shared_ids_.size() && start < end; ++k) {
    const Feature& f = features_[shared_ids_[k].front()];
    const BoundFeature& b = call->features_[shared_ids_[k].front()];
    const int64_t to = std::min(b.values, end - start);
    const int64_t last_dim = b.ids.rank > 0 ? b.ids.dims[b.ids.rank - 1] : 1;
    for (int64_t at = std::max<int64_t>(0, begin - start); at < to; at += kChunkValues) {
      const int64_t next = std::min(to, at + kChunkValues);
      if (block.Run(b.ids, at, next, f.spec.steps.data(), f.step_count, last_dim, call->steps_).ok()) {
        if (f.hashed) {
          std::atomic<int64_t> missing{0};
          b.source->numbers.Run(block.ids(), next - at, 0, f.prune_negative, false,
                                call->counting_ ? &missing : nullptr);
          for (const int32_t i : shared_ids_[k]) {
            if (missing > 0) call->features_[i].default_rows.fetch_add(missing, std::memory_order_relaxed);
          }
        }
        std::copy_n(block.ids(), next - at, call->shared_ids_[k].data() + at);
        continue;
      }
      for (const int32_t i : shared_ids_[k]) call->features_[i].irregular.store(true);  // Finish says what is wrong
      break;
    }
    start += b.values;
  }
}

void FusedLookup::CopyResults(const Call& call) const {
  for (size_t i = 0; i < features_.size(); ++i) {
    const Feature& f = features_[i];
    if (f.same_as < 0) continue;
    const Feature& from = features_[f.same_as];
    const int64_t to_stride = output_row_bytes_[f.spec.output];
    const int64_t from_stride = output_row_bytes_[from.spec.output];
    const auto bytes = static_cast<size_t>(f.value_bytes * std::max<int64_t>(1, f.spec.ids_per_row));
    uint8_t* to = call.output_data_[f.spec.output] + f.column_bytes;
    const uint8_t* data = call.output_data_[from.spec.output] + from.column_bytes;
    for (int64_t row = 0; row < call.features_[i].row_count; ++row, to += to_stride, data += from_stride) {
      std::memcpy(to, data, bytes);
    }
  }
}

}  // namespace tfctr
