// The fast side of the runner: cutting work into blocks, the short resolve loops, and the walk over a chunk.
#include "tfctr/core/lookup/runner.h"

#include <algorithm>
#include <cstring>

#include "tfctr/core/lookup/row_prefetch.h"
#include "tfctr/core/lookup/scratch.h"

namespace tfctr {
namespace {

constexpr int64_t kBlockRows = 512;
constexpr int64_t kStepValues = 1024;  // ids that go through their steps at once: 8 KB
constexpr int64_t kStartRows = 16;     // rows of the next feature that are fetched before it starts

int64_t Scale(int64_t total, int64_t at, int64_t units) {
  return static_cast<int64_t>(static_cast<__int128>(total) * at / units);
}

// What the short resolve loops need of a feature.
struct Lister {
  Lister(const Feature& f, const BoundFeature& b)
      : table_rows(static_cast<uint64_t>(b.table_rows)),
        row_bytes(static_cast<uint64_t>(f.row_bytes)),
        base(reinterpret_cast<uint64_t>(b.table)),
        wrap(f.wrap) {}

  // Lists the row of `id` at `at` and says whether it is to be kept (else the next one takes its place).
  // An id out of range raises `bad`; its pointer must not be followed. Negative ids are left out (kPrune) or wrapped.
  template <bool kPrune>
  bool Put(int64_t id, const uint8_t** at, bool* bad) const {
    if (!kPrune && id < 0) id = static_cast<int64_t>(static_cast<uint64_t>(id) + static_cast<uint64_t>(wrap));
    const bool kept = !kPrune || id >= 0;
    *bad |= kept & (static_cast<uint64_t>(id) >= table_rows);
    *at = reinterpret_cast<const uint8_t*>(base + static_cast<uint64_t>(id) * row_bytes);
    return kept;
  }

  uint64_t table_rows;
  uint64_t row_bytes;
  uint64_t base;
  int64_t wrap;
};

// Lists n ids; returns how many were kept.
template <bool kPrune, typename Id>
int64_t ListIds(const Lister lister, const Id* ids, int64_t n, const uint8_t** list, bool* bad) {
  int64_t listed = 0;
  bool outside = false;
  for (int64_t k = 0; k < n; ++k) listed += lister.Put<kPrune>(static_cast<int64_t>(ids[k]), list + listed, &outside);
  *bad |= outside;
  return listed;
}

// The same with a row number per value; counts[row - first_row] gets the number kept. False: an id is out of range, a
// row is outside of [first_row, first_row + row_count) or comes before its predecessor.
template <bool kPrune, typename Id, typename Row>
bool ListSorted(const Lister lister, const Id* ids, const Row* rows, int64_t stride, int64_t n, int64_t first_row,
                int64_t row_count, const uint8_t** list, int64_t* counts, int64_t* listed) {
  // Ends of the rows first: a store per value, where counting would wait for the count just stored.
  int64_t* ends = counts;
  std::fill_n(ends, row_count, 0);
  uint64_t previous = 0;
  bool bad = false;
  int64_t out = 0;
  for (int64_t k = 0; k < n; ++k) {
    const uint64_t row =
        static_cast<uint64_t>(static_cast<int64_t>(rows[k * stride])) - static_cast<uint64_t>(first_row);
    if (row >= static_cast<uint64_t>(row_count)) return false;
    bad |= row < previous;
    previous = row;
    out += lister.Put<kPrune>(static_cast<int64_t>(ids[k]), list + out, &bad);
    ends[row] = out;
  }
  int64_t end = 0;
  for (int64_t r = 0; r < row_count; ++r) {
    const int64_t next = std::max(end, ends[r]);
    counts[r] = next - end;
    end = next;
  }
  *listed = out;
  return !bad;
}

// Rewrites n doubles as n floats at the same address.
void ToFloats(double* numbers, size_t n) {
  char* out = reinterpret_cast<char*>(numbers);
  for (size_t k = 0; k < n; ++k) {
    const float value = static_cast<float>(numbers[k]);
    std::memcpy(out + k * sizeof(value), &value, sizeof(value));
  }
}

}  // namespace

Runner::Runner(const FusedLookup& plan, Call* call) : plan_(plan), call_(call), s_(Scratch::OfThread()) {
  for (ListedBlock& block : s_.blocks) block.Clear();
  listing_ = &s_.blocks[0];
}

int64_t Runner::BlockValues(const Feature& f, const BoundFeature& b) {
  if (!f.stream || (f.spec.form == Form::kRagged && b.rows.dtype != DType::kInt64)) return f.block_values;
  return RawIds(f, b) ? INT64_MAX / 2 : kStepValues;
}

// What a feature reads first cannot be fetched while it runs: that is done while the features before it run, in three
// steps, each of which needs what the one before it fetched.
void Runner::PrefetchStart(size_t next) const {
  const size_t count = plan_.features_.size();
  if (next + 2 < count) {
    PrefetchBytes(&plan_.features_[next + 2], sizeof(Feature));
    PrefetchBytes(&call_->features_[next + 2], sizeof(BoundFeature));
  }
  if (next + 1 < count) {
    const BoundFeature& b = call_->features_[next + 1];
    PrefetchBytes(b.ids.data, 4 * kPrefetchLine);
    if (b.rows.elements > 0) PrefetchBytes(b.rows.data, 4 * kPrefetchLine);
  }
  if (next >= count) return;
  const Feature& f = plan_.features_[next];
  const BoundFeature& b = call_->features_[next];
  if (!f.stream || !RawIds(f, b)) return;
  bool wide;
  const void* ids = IdsOf(b, &wide);
  for (int64_t i = 0; i < std::min(b.values, kStartRows); ++i) {
    const int64_t id = wide ? static_cast<const int64_t*>(ids)[i] : static_cast<const int32_t*>(ids)[i];
    PrefetchRow(reinterpret_cast<const uint8_t*>(reinterpret_cast<uint64_t>(b.table) +
                                                 static_cast<uint64_t>(id) * static_cast<uint64_t>(f.row_bytes)),
                f.row_bytes);
  }
}

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
    if (from >= to) continue;
    PrefetchStart(i + 1);
    FeatureRange(static_cast<int32_t>(i), from, to);
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
  const Feature& f = plan_.features_[index];
  BoundFeature& b = call_->features_[index];
  const int64_t values = BlockValues(f, b);
  const int64_t limit = f.stream ? INT64_MAX / 2 : kBlockRows;
  const int64_t step = std::max<int64_t>(1, std::min(limit, values / std::max<int64_t>(1, b.positions)));
  for (int64_t row = row_begin; row < row_end; row += step) {
    const int64_t next = row_end - row <= step ? row_end : row + step;
    if (!Block(index, {row, next, row * b.positions, next * b.positions})) return b.irregular.store(true);
  }
}

void Runner::RaggedRange(int32_t index, int64_t row_begin, int64_t row_end) {
  const Feature& f = plan_.features_[index];
  BoundFeature& b = call_->features_[index];
  const bool wide = b.rows.dtype == DType::kInt64;
  const auto split = [&b, wide](int64_t row) {
    return wide ? static_cast<const int64_t*>(b.rows.data)[row] : static_cast<const int32_t*>(b.rows.data)[row];
  };
  const int64_t values = BlockValues(f, b);
  const bool whole = values == INT64_MAX / 2;
  for (int64_t row = row_begin; row < row_end;) {
    const int64_t first = split(row);
    if (first < 0 || first > b.values) return b.irregular.store(true);
    const int64_t limit = whole ? row_end : std::min(row_end, row + kBlockRows);
    int64_t next = whole ? row_end : row + 1;
    while (next < limit && split(next) < first + values) ++next;
    const int64_t last = split(next);
    if (last < first || last > b.values) return b.irregular.store(true);
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
  const int64_t values = BlockValues(f, b);
  const bool whole = values == INT64_MAX / 2;
  while (row < row_end) {
    const int64_t limit = whole ? row_end : std::min(row_end, row + kBlockRows);
    int64_t next_value = value_end - value <= values ? value_end : value + values;
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
  // Rows of higher rank have their numbers computed one by one.
  const bool flat = call_->features_[index].rows.rank != 2 || call_->features_[index].rows.dims[1] <= 2;
  bool regular = true;
  // The stream kernels read int64 row_splits only.
  const bool narrow_splits =
      plan_.features_[index].spec.form == Form::kRagged && call_->features_[index].rows.dtype != DType::kInt64;
  if (plan_.features_[index].stream && flat && !narrow_splits) return StreamBlock(index, part);
  if (plan_.features_[index].fast && flat) {
    regular = FastBlock(index, part);
  } else {
    regular = GeneralBlock(index, part, false, &regular).ok() && regular;
  }
  if (!regular) listing_->Clear();
  return regular;
}

bool Runner::ReadNumbers(const Feature& f, const BoundFeature& b, int64_t begin, int64_t end, const RowHint* hint) {
  if (b.ready_ids != nullptr) {
    s_.ids.Take(b.ready_ids + begin, end - begin);
  } else {
    const int64_t last_dim = b.ids.rank > 0 ? b.ids.dims[b.ids.rank - 1] : 1;
    if (!s_.ids
             .Run(b.ids, begin, end, f.spec.steps.data(), f.step_count, last_dim, call_->steps_,
                  b.renumber ? nullptr : hint)
             .ok()) {
      return false;
    }
  }
  if (b.renumber) {
    b.source->numbers.Run(s_.ids.ids(), s_.ids.size(), f.wrap, f.prune_negative, hint != nullptr,
                          call_->counting_ && f.hashed ? &b.default_rows : nullptr);
  }
  return true;
}

bool Runner::StreamBlock(int32_t index, const Part& part) {
  const Feature& f = plan_.features_[index];
  const BoundFeature& b = call_->features_[index];
  StreamTask task;
  if (RawIds(f, b)) {
    task.ids = IdsOf(b, &task.ids_wide);
  } else {
    const RowHint hint{b.table, f.row_bytes};
    if (!ReadNumbers(f, b, part.value_begin, part.value_end, &hint)) return false;
    task.ids = s_.ids.ids();
    task.ids_first = part.value_begin;
  }
  task.rows = b.rows.data;
  task.rows_wide = b.rows.dtype == DType::kInt64;
  task.stride = b.rows.rank == 2 ? b.rows.dims[1] : 1;
  task.splits = f.spec.form == Form::kRagged;
  task.positions = f.spec.form == Form::kDense ? b.positions : -1;
  task.row_begin = part.row_begin;
  task.row_end = part.row_end;
  task.value_begin = part.value_begin;
  task.value_end = part.value_end;
  task.table = b.table;
  task.table_rows = b.table_rows;
  task.row_bytes = f.row_bytes;
  task.wrap = f.wrap;
  task.prune = f.prune_negative;
  task.fill_id = f.spec.fill_id ? b.source->fill_number : -1;
  task.copy = f.spec.combiner == Combiner::kNone;
  task.width = f.spec.table_width;
  task.out = call_->output_data_[f.spec.output] + f.column_bytes;
  task.out_stride = plan_.output_row_bytes_[f.spec.output];
  task.finish = f.finish;
  task.empty_is_nan = b.empty_is_nan;
  return plan_.kernels_->stream(f.format, task);
}

bool Runner::FastBlock(int32_t index, const Part& part) {
  const Feature& f = plan_.features_[index];
  const BoundFeature& b = call_->features_[index];
  bool ok;
  if (RawIds(f, b)) {
    bool wide;
    const void* ids = IdsOf(b, &wide);
    ok = wide ? FastList(f, b, part, static_cast<const int64_t*>(ids) + part.value_begin)
              : FastList(f, b, part, static_cast<const int32_t*>(ids) + part.value_begin);
  } else {
    ok = ReadNumbers(f, b, part.value_begin, part.value_end, nullptr) && FastList(f, b, part, s_.ids.ids());
  }
  if (ok) Append(index, part);
  return ok;
}

template <typename Id>
bool Runner::FastList(const Feature& f, const BoundFeature& b, const Part& part, const Id* ids) {
  const Lister lister(f, b);
  const int64_t n = part.value_end - part.value_begin;
  const uint8_t** list = listing_->list.Grow(static_cast<size_t>(n));
  bool bad = false;
  if (f.spec.combiner == Combiner::kNone) {
    ListIds<false>(lister, ids, n, list, &bad);
    return !bad;
  }
  const int64_t rows = part.row_end - part.row_begin;
  int64_t* counts = listing_->counts.Grow(static_cast<size_t>(rows));
  int64_t listed = 0;
  if (f.spec.form == Form::kSparse || f.spec.form == Form::kSegments) {
    const int64_t stride = b.rows.rank == 2 ? b.rows.dims[1] : 1;
    const auto sorted = [&](const auto* row) {
      row += part.value_begin * stride;
      return f.prune_negative
                 ? ListSorted<true>(lister, ids, row, stride, n, part.row_begin, rows, list, counts, &listed)
                 : ListSorted<false>(lister, ids, row, stride, n, part.row_begin, rows, list, counts, &listed);
    };
    bad = !(b.rows.dtype == DType::kInt64 ? sorted(static_cast<const int64_t*>(b.rows.data))
                                          : sorted(static_cast<const int32_t*>(b.rows.data)));
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
      counts[r] = next - at;
      if (f.prune_negative) {
        counts[r] = ListIds<true>(lister, ids + (at - part.value_begin), next - at, list + listed, &bad);
        listed += counts[r];
      }
      at = next;
    }
    if (!f.prune_negative) listed = ListIds<false>(lister, ids, n, list, &bad);
  }
  if (bad) return false;
  listing_->list.Shrink(static_cast<size_t>(listed));
  return FillEmptyRows(f, b, rows);
}

// Gives rows of the listed block that have no values the fill id.
bool Runner::FillEmptyRows(const Feature& f, const BoundFeature& b, int64_t rows) {
  if (!f.spec.fill_id) return true;
  int64_t* counts = listing_->counts.data();
  const int64_t empty = std::count(counts, counts + rows, 0);
  if (empty == 0) return true;
  if (!f.hashed && (*f.spec.fill_id < 0 || *f.spec.fill_id >= f.spec.table_rows)) return false;
  const uint8_t* fill = b.table + b.source->fill_number * f.row_bytes;
  listing_->list.Grow(static_cast<size_t>(empty));
  if (f.has_weights) listing_->weights.Grow(static_cast<size_t>(empty));
  const uint8_t** to = listing_->list.data() + listing_->list.size();
  const uint8_t** from = to - empty;
  double* weight_to = listing_->weights.data() + listing_->weights.size();
  const double* weight_from = weight_to - (f.has_weights ? empty : 0);
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

// The listed block is complete: the one before it is reduced, and its memory takes the next one.
void Runner::Append(int32_t index, const Part& part) {
  const Feature& f = plan_.features_[index];
  ListedBlock* block = listing_;
  RowsAhead ahead(block->list.data(), static_cast<int64_t>(block->list.size()), f.row_bytes);
  block->feature = index;
  block->row_begin = part.row_begin;
  block->rows = part.row_end - part.row_begin;
  if (!f.is_double) {
    if (f.has_weights) ToFloats(block->weights.data(), block->weights.size());
    if (f.needs_divisors) ToFloats(block->divisors.data(), block->divisors.size());
  }
  listing_ = block == &s_.blocks[0] ? &s_.blocks[1] : &s_.blocks[0];
  Reduce(listing_, &ahead);
  ahead.Fetch(ahead.left());
}

void Runner::Flush() {
  for (ListedBlock& block : s_.blocks) Reduce(&block, nullptr);
}

void Runner::Reduce(ListedBlock* block, RowsAhead* ahead) {
  if (block->feature < 0) return;
  const Feature& f = plan_.features_[block->feature];
  const BoundFeature& b = call_->features_[block->feature];
  const uint8_t** list = block->list.data();
  const size_t entries = block->list.size();
  RowFormat format = f.format;
  if (f.spec.max_norm) {
    s_.clipped.resize(entries * static_cast<size_t>(f.value_bytes));
    plan_.kernels_->clip(format, list, static_cast<int64_t>(entries), f.spec.table_width, *f.spec.max_norm,
                         s_.clipped.data());
    for (size_t k = 0; k < entries; ++k) list[k] = s_.clipped.data() + k * static_cast<size_t>(f.value_bytes);
    format = RowFormatOf(f.spec.table_dtype, DType::kInvalid);
  }
  const int64_t stride = plan_.output_row_bytes_[f.spec.output];
  uint8_t* out = call_->output_data_[f.spec.output] + block->row_begin * stride + f.column_bytes;
  if (f.spec.combiner == Combiner::kNone) {
    CopyTask task;
    task.ahead = ahead;
    task.list = list;
    task.entries = static_cast<int64_t>(entries);
    task.per_row = b.positions;
    task.width = f.spec.table_width;
    task.row_bytes = f.value_bytes;
    task.out = out;
    task.out_stride = stride;
    plan_.kernels_->copy(format, task);
  } else {
    ReduceTask task;
    task.ahead = ahead;
    task.list = list;
    task.counts = block->counts.data();
    task.weights = f.has_weights ? block->weights.data() : nullptr;
    task.divisors = f.needs_divisors ? block->divisors.data() : nullptr;
    task.rows = block->rows;
    task.first_row = block->row_begin;
    task.width = f.spec.table_width;
    task.out = out;
    task.out_stride = stride;
    task.order = f.order;
    task.finish = f.finish;
    task.empty_is_nan = b.empty_is_nan;
    plan_.kernels_->reduce(format, task);
  }
  block->Clear();
}

}  // namespace tfctr
