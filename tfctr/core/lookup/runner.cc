// The fast side of the runner: cutting work into blocks, the short resolve loops, and the walk over a chunk.
#include "tfctr/core/lookup/runner.h"

#include <algorithm>
#include <cstring>

#include "tfctr/core/lookup/scratch.h"

namespace tfctr {
namespace {

constexpr int64_t kBlockValues = 512;
constexpr int64_t kBlockRows = 1024;
constexpr size_t kChunkValues = 2048;  // list entries; 16 KB of pointers

int64_t Scale(int64_t total, int64_t at, int64_t units) {
  return static_cast<int64_t>(static_cast<__int128>(total) * at / units);
}

// Pointers of n ids. Ids out of range are noted in *bad and give pointers that must not be followed. Negative ids are
// left out (kPrune) or wrapped (kWrap). Returns the number of pointers.
template <typename Id, bool kPrune, bool kWrap>
int64_t ListIds(const Id* ids, int64_t n, const Feature& f, const uint8_t* table, const uint8_t** list, bool* bad) {
  const uint64_t rows = static_cast<uint64_t>(f.spec.table_rows);
  const uint64_t row_bytes = static_cast<uint64_t>(f.row_bytes);
  const uint64_t base = reinterpret_cast<uint64_t>(table);
  const int64_t wrap = f.wrap;
  int64_t listed = 0;
  bool outside = false;
  for (int64_t k = 0; k < n; ++k) {
    int64_t id = static_cast<int64_t>(ids[k]);
    if (kWrap) id += id < 0 ? wrap : 0;
    const bool kept = !kPrune || id >= 0;
    outside |= kept & (static_cast<uint64_t>(id) >= rows);
    list[listed] = reinterpret_cast<const uint8_t*>(base + static_cast<uint64_t>(id) * row_bytes);
    listed += kept;
  }
  *bad |= outside;
  return listed;
}

// Rewrites n doubles as n floats at the same address.
void ToFloats(double* numbers, size_t n) {
  char* out = reinterpret_cast<char*>(numbers);
  for (size_t k = 0; k < n; ++k) {
    const float value = static_cast<float>(numbers[k]);
    std::memcpy(out + k * sizeof(value), &value, sizeof(value));
  }
}

template <typename Id>
int64_t ListIds(const Id* ids, int64_t n, const Feature& f, const uint8_t* table, const uint8_t** list, bool* bad) {
  if (f.prune_negative) return ListIds<Id, true, false>(ids, n, f, table, list, bad);
  if (f.wrap != 0) return ListIds<Id, false, true>(ids, n, f, table, list, bad);
  return ListIds<Id, false, false>(ids, n, f, table, list, bad);
}

// The same with a row number per value: counts[row - first_row] is raised. False: a row is outside of
// [first_row, first_row + row_count) or comes before its predecessor.
template <typename Id, typename Row, bool kPrune>
bool ListSorted(const Id* ids, const Row* rows, int64_t stride, int64_t n, int64_t first_row, int64_t row_count,
                const Feature& f, const uint8_t* table, const uint8_t** list, int64_t* counts, int64_t* listed) {
  const uint64_t table_rows = static_cast<uint64_t>(f.spec.table_rows);
  const uint64_t row_bytes = static_cast<uint64_t>(f.row_bytes);
  const uint64_t base = reinterpret_cast<uint64_t>(table);
  const int64_t wrap = f.wrap;
  uint64_t previous = 0;
  bool bad = false;
  int64_t out = 0;
  for (int64_t k = 0; k < n; ++k) {
    const uint64_t row = static_cast<uint64_t>(static_cast<int64_t>(rows[k * stride]) - first_row);
    if (row >= static_cast<uint64_t>(row_count)) return false;
    bad |= row < previous;
    previous = row;
    int64_t id = static_cast<int64_t>(ids[k]);
    if (!kPrune) id += id < 0 ? wrap : 0;
    const bool kept = !kPrune || id >= 0;
    bad |= kept & (static_cast<uint64_t>(id) >= table_rows);
    list[out] = reinterpret_cast<const uint8_t*>(base + static_cast<uint64_t>(id) * row_bytes);
    out += kept;
    counts[row] += kept;
  }
  *listed = out;
  return !bad;
}

}  // namespace

Runner::Runner(const FusedLookup& plan, Call* call) : plan_(plan), call_(call), s_(Scratch::OfThread()) { s_.Clear(); }

void Runner::Range(int64_t begin, int64_t end) {
  const std::vector<BoundFeature>& features = call_->features_;
  size_t i = 0;
  if (begin > 0) {
    size_t high = features.size();
    while (high - i > 1) {
      const size_t middle = (i + high) / 2;
      (features[middle].work_begin <= begin ? i : high) = middle;
    }
  }
  for (; i < features.size() && features[i].work_begin < end; ++i) {
    const int64_t units = Units(plan_.features_[i], features[i]);
    const int64_t from = std::max<int64_t>(0, begin - features[i].work_begin);
    const int64_t to = std::min(units, end - features[i].work_begin);
    if (from < to) FeatureRange(static_cast<int32_t>(i), from, to);
  }
  Flush();
}

void Runner::FeatureRange(int32_t index, int64_t begin, int64_t end) {
  const Feature& f = plan_.features_[index];
  const BoundFeature& b = call_->features_[index];
  if (!f.is_copy && (f.spec.form == Form::kSparse || f.spec.form == Form::kSegments)) {
    SortedRange(index, begin, end);
    return;
  }
  const int64_t units = Units(f, b);
  const int64_t row_begin = Scale(b.row_count, begin, units);
  const int64_t row_end = Scale(b.row_count, end, units);
  if (f.is_copy) return CopyColumns(index, row_begin, row_end);
  if (f.spec.form == Form::kRagged) return RaggedRange(index, row_begin, row_end);
  DenseRange(index, row_begin, row_end);
}

void Runner::CopyColumns(int32_t index, int64_t row_begin, int64_t row_end) {
  const Feature& f = plan_.features_[index];
  const int64_t stride = plan_.output_row_bytes_[f.spec.output];
  uint8_t* out = call_->output_data_[f.spec.output] + row_begin * stride + f.column_bytes;
  const uint8_t* in = static_cast<const uint8_t*>(call_->features_[index].ids.data) + row_begin * f.row_bytes;
  for (int64_t row = row_begin; row < row_end; ++row, out += stride, in += f.row_bytes) {
    std::memcpy(out, in, static_cast<size_t>(f.row_bytes));
  }
}

void Runner::DenseRange(int32_t index, int64_t row_begin, int64_t row_end) {
  BoundFeature& b = call_->features_[index];
  const int64_t step = std::max<int64_t>(1, std::min(kBlockRows, kBlockValues / std::max<int64_t>(1, b.positions)));
  for (int64_t row = row_begin; row < row_end; row += step) {
    const int64_t next = std::min(row + step, row_end);
    if (!Block(index, {row, next, row * b.positions, next * b.positions})) return b.irregular.store(true);
  }
}

void Runner::RaggedRange(int32_t index, int64_t row_begin, int64_t row_end) {
  BoundFeature& b = call_->features_[index];
  const bool wide = b.rows.dtype == DType::kInt64;
  const auto split = [&b, wide](int64_t row) {
    return wide ? static_cast<const int64_t*>(b.rows.data)[row] : static_cast<const int32_t*>(b.rows.data)[row];
  };
  for (int64_t row = row_begin; row < row_end;) {
    const int64_t first = split(row);
    const int64_t limit = std::min(row_end, row + kBlockRows);
    int64_t next = row + 1;
    while (next < limit && split(next) - first < kBlockValues) ++next;
    const int64_t last = split(next);
    if (first < 0 || last < first || last > b.values) return b.irregular.store(true);
    if (!Block(index, {row, next, first, last})) return b.irregular.store(true);
    row = next;
  }
}

void Runner::SortedRange(int32_t index, int64_t begin, int64_t end) {
  const Feature& f = plan_.features_[index];
  BoundFeature& b = call_->features_[index];
  const int64_t units = Units(f, b);
  const int64_t n = b.values;
  const RowReader row_of(b);
  // A part starts with the first value of an output row, and owns the rows from there to the start of the next part.
  const auto start_of = [&](int64_t unit) {
    int64_t v = Scale(n, unit, units);
    while (v > 0 && v < n && row_of(v) == row_of(v - 1)) ++v;
    return v;
  };
  int64_t value = begin == 0 ? 0 : start_of(begin);
  const int64_t value_end = end == units ? n : start_of(end);
  int64_t row = begin == 0 ? 0 : value < n ? row_of(value) : b.row_count;
  const int64_t row_end = end < units && value_end < n ? row_of(value_end) : b.row_count;
  if (row < 0 || row_end < row || row_end > b.row_count) return b.irregular.store(true);
  while (row < row_end) {
    const int64_t limit = std::min(row_end, row + kBlockRows);
    int64_t next_value = std::min(value + kBlockValues, value_end);
    while (next_value > value && next_value < value_end && row_of(next_value) == row_of(next_value - 1)) ++next_value;
    if (next_value > value &&
        row_of(next_value - 1) >= limit) {  // more rows than a block takes: the values below limit
      int64_t low = value;
      while (low < next_value) {
        const int64_t middle = low + (next_value - low) / 2;
        if (row_of(middle) < limit) {
          low = middle + 1;
        } else {
          next_value = middle;
        }
      }
    }
    const int64_t next = next_value < value_end ? std::min(row_of(next_value), limit) : limit;
    if (next <= row) return b.irregular.store(true);
    if (!Block(index, {row, next, value, next_value})) return b.irregular.store(true);
    row = next;
    value = next_value;
  }
  if (value < value_end) b.irregular.store(true);  // rows at or above row_end
}

bool Runner::Block(int32_t index, const Part& part) {
  const size_t list_begin = s_.list.size();
  // Rows of higher rank have their numbers computed one by one.
  const bool flat = call_->features_[index].rows.rank != 2 || call_->features_[index].rows.dims[1] <= 2;
  bool regular = true;
  if (plan_.features_[index].fast && flat) {
    regular = FastBlock(index, part);
  } else {
    regular = GeneralBlock(index, part, false, &regular).ok() && regular;
  }
  if (!regular) s_.list.Shrink(list_begin);
  return regular;
}

bool Runner::FastBlock(int32_t index, const Part& part) {
  const Feature& f = plan_.features_[index];
  const BoundFeature& b = call_->features_[index];
  bool ok;
  if (f.step_count == 0 && !b.ids.is_string && b.ids.dtype == DType::kInt64) {
    ok = FastList(f, b, part, static_cast<const int64_t*>(b.ids.data) + part.value_begin);
  } else if (f.step_count == 0 && !b.ids.is_string && b.ids.dtype == DType::kInt32) {
    ok = FastList(f, b, part, static_cast<const int32_t*>(b.ids.data) + part.value_begin);
  } else {
    const int64_t last_dim = b.ids.rank > 0 ? b.ids.dims[b.ids.rank - 1] : 1;
    ok = s_.ids.Run(b.ids, part.value_begin, part.value_end, f.spec.steps.data(), f.step_count, last_dim, call_->steps_)
             .ok() &&
         FastList(f, b, part, s_.ids.ids());
  }
  if (ok) Append(index, part);
  return ok;
}

template <typename Id>
bool Runner::FastList(const Feature& f, const BoundFeature& b, const Part& part, const Id* ids) {
  const int64_t n = part.value_end - part.value_begin;
  const size_t begin = s_.list.size();
  const uint8_t** list = s_.list.Grow(static_cast<size_t>(n));
  bool bad = false;
  if (f.spec.combiner == Combiner::kNone) {
    ListIds(ids, n, f, b.table, list, &bad);
    return !bad;
  }
  const int64_t rows = part.row_end - part.row_begin;
  int64_t* counts = s_.counts.Grow(static_cast<size_t>(rows));
  int64_t listed = 0;
  if (f.spec.form == Form::kSparse || f.spec.form == Form::kSegments) {
    std::fill_n(counts, rows, 0);
    const int64_t stride = b.rows.rank == 2 ? b.rows.dims[1] : 1;
    bool ok;
    if (b.rows.dtype == DType::kInt64) {
      const int64_t* row = static_cast<const int64_t*>(b.rows.data) + part.value_begin * stride;
      ok = f.prune_negative ? ListSorted<Id, int64_t, true>(ids, row, stride, n, part.row_begin, rows, f, b.table, list,
                                                            counts, &listed)
                            : ListSorted<Id, int64_t, false>(ids, row, stride, n, part.row_begin, rows, f, b.table,
                                                             list, counts, &listed);
    } else {
      const int32_t* row = static_cast<const int32_t*>(b.rows.data) + part.value_begin;
      ok =
          f.prune_negative
              ? ListSorted<Id, int32_t, true>(ids, row, 1, n, part.row_begin, rows, f, b.table, list, counts, &listed)
              : ListSorted<Id, int32_t, false>(ids, row, 1, n, part.row_begin, rows, f, b.table, list, counts, &listed);
    }
    if (!ok) return false;
  } else {
    const bool ragged = f.spec.form == Form::kRagged;
    const bool wide = b.rows.dtype == DType::kInt64;
    const auto end_of = [&](int64_t row) -> int64_t {
      if (!ragged) return (row + 1) * b.positions;
      return wide ? static_cast<const int64_t*>(b.rows.data)[row + 1]
                  : static_cast<const int32_t*>(b.rows.data)[row + 1];
    };
    int64_t at = part.value_begin;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t next = end_of(part.row_begin + r);
      if (next < at || next > part.value_end) return false;
      if (f.prune_negative) {
        counts[r] = ListIds<Id, true, false>(ids + (at - part.value_begin), next - at, f, b.table, list + listed, &bad);
        listed += counts[r];
      } else {
        counts[r] = next - at;
      }
      at = next;
    }
    if (!f.prune_negative) listed = ListIds(ids, n, f, b.table, list, &bad);
  }
  if (bad) return false;
  s_.list.Shrink(begin + static_cast<size_t>(listed));
  return FillEmptyRows(f, b, rows);
}

// The last `rows` counts belong to the block whose list ends the list: gives rows without values the fill id.
bool Runner::FillEmptyRows(const Feature& f, const BoundFeature& b, int64_t rows) {
  if (!f.spec.fill_id) return true;
  int64_t* counts = s_.counts.data() + (s_.counts.size() - static_cast<size_t>(rows));
  const int64_t empty = std::count(counts, counts + rows, 0);
  if (empty == 0) return true;
  if (*f.spec.fill_id < 0 || *f.spec.fill_id >= f.spec.table_rows) return false;
  const uint8_t* fill = b.table + *f.spec.fill_id * f.row_bytes;
  s_.list.Grow(static_cast<size_t>(empty));
  if (f.has_weights) s_.weights.Grow(static_cast<size_t>(empty));
  const uint8_t** to = s_.list.data() + s_.list.size();
  const uint8_t** from = to - empty;
  double* weight_to = s_.weights.data() + s_.weights.size();
  const double* weight_from = weight_to - empty;
  for (int64_t r = rows - 1; r >= 0 && from != to; --r) {
    if (counts[r] == 0) {
      *--to = fill;
      if (f.has_weights) *--weight_to = 1.0;
      counts[r] = 1;
      continue;
    }
    for (int64_t k = 0; k < counts[r]; ++k) {
      *--to = *--from;
      if (f.has_weights) *--weight_to = *--weight_from;
    }
  }
  return true;
}

// The block's list and counts are complete (they end the piles).
void Runner::Append(int32_t index, const Part& part) {
  const Feature& f = plan_.features_[index];
  PendingBlock block;
  block.feature = index;
  block.weighted = f.has_weights;
  block.row_begin = part.row_begin;
  block.rows = part.row_end - part.row_begin;
  block.place = 0;
  const PendingBlock* last = s_.blocks.empty() ? nullptr : &s_.blocks.back();
  block.list_begin = last == nullptr ? 0 : last->list_begin + last->list_count;
  block.list_count = s_.list.size() - block.list_begin;
  const size_t rows = static_cast<size_t>(block.rows);
  block.counts_begin = f.spec.combiner == Combiner::kNone ? s_.counts.size() : s_.counts.size() - rows;
  block.weights_begin = f.has_weights ? s_.weights.size() - block.list_count : 0;
  block.divisors_begin = f.needs_divisors ? s_.divisors.size() - rows : 0;
  if (!f.is_double) {
    if (f.has_weights) ToFloats(s_.weights.data() + block.weights_begin, block.list_count);
    if (f.needs_divisors) ToFloats(s_.divisors.data() + block.divisors_begin, rows);
  }
  s_.blocks.push_back(block);
  if (s_.list.size() >= kChunkValues || s_.counts.size() >= kChunkValues) Flush();
}

void Runner::Flush() {
  if (s_.blocks.empty()) return s_.Clear();
  const size_t entries = s_.list.size();
  const uint8_t* any = plan_.features_.empty() ? nullptr : call_->features_[s_.blocks.back().feature].table;
  std::fill_n(s_.list.Grow(kPrefetchDistance), kPrefetchDistance, any);
  for (size_t k = 0; k < std::min<size_t>(entries, kPrefetchDistance); ++k) __builtin_prefetch(s_.list.data()[k]);
  for (const PendingBlock& block : s_.blocks) {
    const Feature& f = plan_.features_[block.feature];
    const BoundFeature& b = call_->features_[block.feature];
    const uint8_t** list = s_.list.data() + block.list_begin;
    if (f.spec.max_norm) {
      s_.clipped.resize(block.list_count * static_cast<size_t>(f.row_bytes));
      plan_.kernels_->clip(f.spec.table_dtype, list, static_cast<int64_t>(block.list_count), f.spec.table_width,
                           *f.spec.max_norm, s_.clipped.data());
      for (size_t k = 0; k < block.list_count; ++k) list[k] = s_.clipped.data() + k * static_cast<size_t>(f.row_bytes);
    }
    const int64_t stride = plan_.output_row_bytes_[f.spec.output];
    uint8_t* out = call_->output_data_[f.spec.output] + block.row_begin * stride + f.column_bytes;
    if (f.spec.combiner == Combiner::kNone) {
      CopyTask task;
      task.list = list;
      task.entries = static_cast<int64_t>(block.list_count);
      task.per_row = b.positions;
      task.row_bytes = f.row_bytes;
      task.out = out;
      task.out_stride = stride;
      plan_.kernels_->copy(task);
      continue;
    }
    ReduceTask task;
    task.list = list;
    task.counts = s_.counts.data() + block.counts_begin;
    task.weights = block.weighted ? s_.weights.data() + block.weights_begin : nullptr;
    task.divisors = f.needs_divisors ? s_.divisors.data() + block.divisors_begin : nullptr;
    task.rows = block.rows;
    task.first_row = block.row_begin;
    task.width = f.spec.table_width;
    task.out = out;
    task.out_stride = stride;
    task.order = f.order;
    task.finish = f.finish;
    task.empty_is_nan = b.empty_is_nan;
    plan_.kernels_->reduce(f.spec.table_dtype, task);
  }
  s_.Clear();
}

}  // namespace tfctr
