// The general side of the runner: any steps, weights, masks, divisors; and the careful path over a whole feature, which
// sorts rows or says what is wrong.
#include <algorithm>
#include <cmath>

#include "tfctr/core/lookup/runner.h"
#include "tfctr/core/lookup/scratch.h"

namespace tfctr {
namespace {

int64_t SplitAt(const BoundFeature& b, int64_t row) {
  return b.rows.dtype == DType::kInt64 ? static_cast<const int64_t*>(b.rows.data)[row]
                                       : static_cast<const int32_t*>(b.rows.data)[row];
}

bool HasRowNumbers(const Feature& f) { return f.spec.form == Form::kSparse || f.spec.form == Form::kSegments; }

// What the sum of an output row is divided by. `sum`: of the ones or weights; `squares`: of their squares.
template <typename A>
A DivisorOf(const Feature& f, const BoundFeature& b, A sum, A squares) {
  A base = f.spec.combiner == Combiner::kSqrtn ? std::sqrt(squares) : sum;
  switch (f.spec.denominator) {
    case Denominator::kMax1:
      return base > A(1) ? base : A(1);
    case Denominator::kEps:
      return base + static_cast<A>(f.spec.denominator_eps);
    case Denominator::kPositions:
      base = static_cast<A>(b.positions);
      return f.spec.combiner == Combiner::kSqrtn ? std::sqrt(base) : base;
    case Denominator::kCount:
    case Denominator::kNoNan:
      break;
  }
  return base;
}

}  // namespace

Status Runner::Fail(const Feature& f, const BoundFeature& b, const std::string& what) const {
  return Status::Invalid(FusedLookup::Describe(f, b) + ": " + what);
}

Status Runner::IdError(const Feature& f, const BoundFeature& b, int64_t id, int64_t row) const {
  const std::string number = f.spec.ids_type.dtype == DType::kUInt64 && f.spec.steps.empty()
                                 ? std::to_string(static_cast<uint64_t>(id))
                                 : std::to_string(id);
  return Fail(
      f, b,
      "id " + number + " at row " + std::to_string(row) + " is not in [0, " + std::to_string(f.spec.table_rows) + ")");
}

// Fills s_.entries with what the steps and the weights leave of the part's values, rows included.
Status Runner::ReadEntries(const Feature& f, const BoundFeature& b, const Part& part) {
  const int64_t last_dim = b.ids.rank > 0 ? b.ids.dims[b.ids.rank - 1] : 1;
  const size_t steps = f.spec.steps.size() - (f.hashed ? 1 : 0);
  const Status status =
      s_.ids.Run(b.ids, part.value_begin, part.value_end, f.spec.steps.data(), steps, last_dim, call_->steps_);
  if (!status.ok()) return Fail(f, b, status.message);
  if (f.spec.prune_weights) {
    s_.ids.Filter([this, &b](int64_t k) { return NumberAt(b.weights, s_.ids.source(k)) > 0.0; });
  }
  const int64_t n = s_.ids.size();
  s_.entries.resize(static_cast<size_t>(n));
  const int64_t* ids = s_.ids.ids();
  for (int64_t k = 0; k < n; ++k) {
    const int64_t source = s_.ids.source(k);
    s_.entries[k] = {ids[k], source, 0, f.has_weights ? NumberAt(b.weights, source) : 1.0, false};
  }
  if (HasRowNumbers(f)) {
    const RowReader row_of(b);
    for (Entry& e : s_.entries) e.row = row_of(e.source);
  } else if (f.spec.form == Form::kRagged) {
    for (int64_t r = part.row_begin; r < part.row_end; ++r) {
      if (SplitAt(b, r) > SplitAt(b, r + 1)) {
        return Fail(f, b,
                    "row_splits are not increasing: " + std::to_string(SplitAt(b, r)) + ", " +
                        std::to_string(SplitAt(b, r + 1)) + " at row " + std::to_string(r));
      }
    }
    int64_t row = part.row_begin;
    for (Entry& e : s_.entries) {
      while (row < part.row_end && SplitAt(b, row + 1) <= e.source) ++row;
      e.row = row;
    }
  } else {
    for (Entry& e : s_.entries) e.row = e.source / b.positions;
  }
  if (f.spec.mask.used()) {
    const uint8_t* mask = static_cast<const uint8_t*>(b.mask.data);
    const bool is_bool = b.mask.dtype == DType::kBool;
    for (Entry& e : s_.entries) e.masked = is_bool ? mask[e.source] == 0 : NumberAt(b.mask, e.source) == 0.0;
  }
  if (f.spec.mask_value) {
    for (Entry& e : s_.entries) e.masked |= EqualsAt(b.ids, e.source, *f.spec.mask_value);
  }
  return Status::Ok();
}

// Rows inside the part and in order; ids inside the table, masked ones too. Sorts in the careful path where that is
// legal.
Status Runner::CheckRows(const Feature& f, const BoundFeature& b, const Part& part, bool careful, bool* regular) {
  const auto before = [](const Entry& x, const Entry& y) { return x.row < y.row; };
  if (careful && !f.spec.sort_rows && !std::is_sorted(s_.entries.begin(), s_.entries.end(), before)) {
    return Fail(f, b, "segment ids are not increasing");
  }
  int64_t previous = part.row_begin;
  bool sorted = true;
  for (const Entry& e : s_.entries) {
    if (e.row < part.row_begin || e.row >= part.row_end) {
      *regular = false;
      if (!careful) return Status::Ok();
      if (e.row < 0 && !f.spec.sort_rows) {
        return Fail(f, b, "segment ids must be >= 0, not " + std::to_string(e.row));
      }
      return Fail(f, b,
                  "row " + std::to_string(e.row) + " of value " + std::to_string(e.source) + " is not in [0, " +
                      std::to_string(b.row_count) + ")");
    }
    sorted &= e.row >= previous;
    previous = e.row;
  }
  if (!sorted) {
    *regular = false;
    if (!careful) return Status::Ok();
    std::stable_sort(s_.entries.begin(), s_.entries.end(), before);
  }
  if (f.hashed) return Status::Ok();
  for (const Entry& e : s_.entries) {
    if (e.id < 0 || e.id >= f.spec.table_rows) {
      *regular = false;
      return careful ? IdError(f, b, e.id, e.row) : Status::Ok();
    }
  }
  return Status::Ok();
}

// From ids that were checked to row numbers.
void Runner::NumberEntries(const Feature& f, const BoundFeature& b) {
  if (!b.source->numbers.needed()) return;
  const size_t n = s_.entries.size();
  s_.numbers.resize(n);
  for (size_t k = 0; k < n; ++k) s_.numbers[k] = s_.entries[k].id;
  b.source->numbers.Run(s_.numbers.data(), static_cast<int64_t>(n), 0, false, false);
  int64_t missing = 0;
  for (size_t k = 0; k < n; ++k) {
    s_.entries[k].id = s_.numbers[k];
    missing += !s_.entries[k].masked && b.source->numbers.IsDefaultRow(s_.numbers[k]) ? 1 : 0;
  }
  if (call_->counting_ && missing > 0) b.default_rows.fetch_add(missing, std::memory_order_relaxed);
}

// Turns the entries, sorted by row, into list, counts, weights and divisors.
template <typename A>
void Runner::EmitEntries(const Feature& f, const BoundFeature& b, const Part& part) {
  const int64_t rows = part.row_end - part.row_begin;
  // From 16 terms on the order of additions depends on the place of a value in its row, so masked ones must stay.
  const bool keep_places = f.has_mask && b.positions >= 16;
  int64_t* counts = listing_->counts.Grow(static_cast<size_t>(f.spec.combiner == Combiner::kNone ? 0 : rows));
  double* divisors = f.needs_divisors ? listing_->divisors.Grow(static_cast<size_t>(rows)) : nullptr;
  const uint8_t** list = listing_->list.Grow(s_.entries.size());
  double* weights = f.has_weights ? listing_->weights.Grow(s_.entries.size()) : nullptr;
  const uint8_t* zeros = plan_.zero_row_.data();
  if (f.spec.combiner == Combiner::kNone) {
    for (size_t k = 0; k < s_.entries.size(); ++k) {
      const Entry& e = s_.entries[k];
      list[k] = e.masked ? zeros : b.table + e.id * f.row_bytes;
    }
    return;
  }
  size_t at = 0;
  size_t listed = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const size_t row_start = listed;
    int64_t left = 0;  // values that count
    A sum = A(0);
    A squares = A(0);
    for (; at < s_.entries.size() && s_.entries[at].row == part.row_begin + r; ++at) {
      const Entry& e = s_.entries[at];
      if (e.masked && !keep_places) continue;
      list[listed] = e.masked ? zeros : b.table + e.id * f.row_bytes;
      const A weight = static_cast<A>(e.weight);
      if (weights != nullptr) weights[listed] = static_cast<double>(weight);
      ++listed;
      if (e.masked) continue;
      ++left;
      sum += weight;
      squares += weight * weight;
    }
    if (left == 0) listed = row_start;
    counts[r] = static_cast<int64_t>(listed - row_start);
    if (divisors != nullptr) {
      // A filled row has one value of weight 1.
      divisors[r] = static_cast<double>(left > 0 ? DivisorOf<A>(f, b, sum, squares) : DivisorOf<A>(f, b, A(1), A(1)));
    }
  }
  listing_->list.Shrink(listed);
  if (f.has_weights) listing_->weights.Shrink(listed);
}

Status Runner::GeneralBlock(int32_t index, const Part& part, bool careful, bool* regular) {
  const Feature& f = plan_.features_[index];
  const BoundFeature& b = call_->features_[index];
  TFCTR_RETURN_IF_ERROR(ReadEntries(f, b, part));
  TFCTR_RETURN_IF_ERROR(CheckRows(f, b, part, careful, regular));
  if (!*regular && !careful) return Status::Ok();
  NumberEntries(f, b);
  if (f.is_double) {
    EmitEntries<double>(f, b, part);
  } else {
    EmitEntries<float>(f, b, part);
  }
  if (f.spec.combiner != Combiner::kNone && !FillEmptyRows(f, b, part.row_end - part.row_begin)) {
    *regular = false;
    return careful ? Fail(f, b,
                          "fill id " + std::to_string(*f.spec.fill_id) + " is not in [0, " +
                              std::to_string(f.spec.table_rows) + ")")
                   : Status::Ok();
  }
  Append(index, part);
  return Status::Ok();
}

Status Runner::Careful(int32_t index) {
  const BoundFeature& b = call_->features_[index];
  if (call_->counting_) b.default_rows.store(0, std::memory_order_relaxed);  // all of it runs again
  bool regular = true;
  const Status status = GeneralBlock(index, {0, b.row_count, 0, b.values}, true, &regular);
  if (status.ok()) Flush();
  s_.ReleaseIfLarge();
  return status;
}

Status Runner::LastRow(const Feature& f, BoundFeature* b) {
  const int64_t limit = f.spec.form == Form::kSegments && f.spec.shape.used() ? b->row_count : INT64_MAX;
  b->row_count = 0;
  if (b->values == 0) return Status::Ok();
  const RowReader row_of(*b);
  int64_t last = -1;
  if (!f.spec.prunes()) {
    last = row_of(b->values - 1);
    if (last < 0) return Fail(f, *b, "segment ids must be >= 0, not " + std::to_string(last));
  } else {
    TFCTR_RETURN_IF_ERROR(ReadEntries(f, *b, {0, 0, 0, b->values}));
    for (const Entry& e : s_.entries) last = f.spec.sort_rows ? std::max(last, e.row) : e.row;
    if (!s_.entries.empty() && last < 0) return Fail(f, *b, "segment ids must be >= 0, not " + std::to_string(last));
  }
  if (last >= limit || last == INT64_MAX) {
    return Fail(f, *b, "segment id " + std::to_string(last) + " is not below the number of segments");
  }
  b->row_count = last + 1;
  return Status::Ok();
}

}  // namespace tfctr
