// The stream kernels: ids to output rows in one loop. Included by gather_impl.h inside its namespace, hence no includes
// and no guard here.
//
// Why a loop of its own: a random row costs a page walk, and the core can do other work meanwhile only if it is close
// by in the instruction stream. Listing rows first and reducing them after leaves one of the two phases without memory
// traffic; measured, that costs 30 to 50 %.

constexpr int64_t kStreamAhead = 16;  // values from prefetch to use
constexpr int64_t kOutAhead = 8;      // output rows from prefetch to store
constexpr int64_t kInlineValues = 9;  // up to here SparseSegment's order is one value after the other

// ids[i] is the id of value i, though memory starts with value `ids_first`.
template <typename Id>
static inline const Id* IdsOf(const StreamTask& task) {
  return reinterpret_cast<const Id*>(reinterpret_cast<uint64_t>(task.ids) -
                                     static_cast<uint64_t>(task.ids_first) * sizeof(Id));
}

static inline int64_t WrapNegative(int64_t id, int64_t wrap) {
  return static_cast<int64_t>(static_cast<uint64_t>(id) + static_cast<uint64_t>(wrap));
}

// Address of a row of any number, in range or not: only to be prefetched.
static inline const uint8_t* RowAddress(const uint8_t* table, int64_t id, int64_t bytes) {
  return reinterpret_cast<const uint8_t*>(reinterpret_cast<uint64_t>(table) +
                                          static_cast<uint64_t>(id) * static_cast<uint64_t>(bytes));
}

// Where output rows end: a cursor over the values of one output row after the other.

// A row number every kStride numbers.
template <typename Index, int kStride>
struct RowNumbers {
  RowNumbers(const StreamTask& task) : at(static_cast<const Index*>(task.rows) + task.value_begin * kStride) {}
  void Start(int64_t number, int64_t) { row = static_cast<Index>(number); }
  // Whether the next value belongs to the row. Called only when there is a next value.
  bool Has() const { return *at == row; }
  void Next() { at += kStride; }
  // The row has got all that it gets; `more`: there is a next value. It must not belong to a row that is past.
  bool Finished(bool more) const { return !more || *at > row; }
  const Index* at;
  Index row = 0;
};

template <typename Index>
struct RowSplits {
  RowSplits(const StreamTask& task) : splits(static_cast<const Index*>(task.rows)) {}
  // Nonsense may wrap around: it is then not 0 at the end.
  void Start(int64_t row, int64_t i) {
    left = static_cast<int64_t>(static_cast<uint64_t>(splits[row + 1]) - static_cast<uint64_t>(i));
  }
  bool Has() const { return left > 0; }
  void Next() { --left; }
  bool Finished(bool) const { return left == 0; }
  const Index* splits;
  int64_t left = 0;
};

struct FixedRows {
  FixedRows(const StreamTask& task) : positions(task.positions) {}
  void Start(int64_t, int64_t) { left = positions; }
  bool Has() const { return left > 0; }
  void Next() { --left; }
  bool Finished(bool) const { return left == 0; }
  int64_t positions;
  int64_t left = 0;
};

// An output row of more than kInlineValues values, summed in stock's order: a first group whose size depends on the
// number of values, then groups of 8. Out of line, so that the usual loop keeps its sums in registers.
template <typename T, int NV, typename Id, bool kPrune>
__attribute__((noinline)) static bool StreamLongRow(const StreamTask& task, int64_t begin, int64_t end, uint8_t* out) {
  using A = typename Traits<T>::A;
  using V = typename Traits<T>::V;
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  const Id* ids = IdsOf<Id>(task);
  int64_t n = 0;
  for (int64_t i = begin; i < end; ++i) n += !kPrune || static_cast<int64_t>(ids[i]) >= 0;
  int64_t group = n & 7;
  if (group == 0) group = 8;
  if (group == 1 && n > 1) group = 9;
  const uint8_t* rows[kInlineValues];
  V acc[NV] = {};
  int64_t listed = 0;
  bool first = true;
  for (int64_t i = begin; i < end; ++i) {
    int64_t id = static_cast<int64_t>(ids[i]);
    if (kPrune && id < 0) continue;
    if (!kPrune && id < 0) id = WrapNegative(id, task.wrap);
    if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(task.table_rows)) return false;
    if (i + kStreamAhead < end) {
      PrefetchRow(RowAddress(task.table, ids[i + kStreamAhead], task.row_bytes), task.row_bytes);
    }
    rows[listed++] = task.table + id * task.row_bytes;
    if (listed < group) continue;
    V sum[NV];
    SumSegmentOrder<T, V, NV>(rows, listed, 0, sum);
    for (int v = 0; v < NV; ++v) acc[v] = first ? sum[v] : acc[v] + sum[v];
    first = false;
    group = 8;
    listed = 0;
  }
  static const Scales<A> scales;
  ReduceTask finish_of;  // only its `finish` is read
  finish_of.finish = task.finish;
  const RowFinish<A> finish = FinishOf(finish_of, scales, 0, n);
  for (int v = 0; v < NV; ++v)
    Store(Apply(acc[v], finish), reinterpret_cast<typename Traits<T>::Out*>(out) + v * kLanes);
  return true;
}

template <typename T>
__attribute__((noinline)) static void StreamEmptyRow(const StreamTask& task, uint8_t* out) {
  if (task.fill_id >= 0) {
    WidenRow<T, 0>(task.table + task.fill_id * task.row_bytes, task.width, out);
  } else {
    FillRow(reinterpret_cast<typename Traits<T>::Out*>(out), task.width, task.empty_is_nan);
  }
}

// Out of line, each with the registers to itself: the fewer instructions per value, the more misses are in flight.
// kBytes: from one table row to the next.
template <typename T, int NV, typename Id, bool kPrune, typename Rows, int64_t kBytes>
__attribute__((noinline)) static bool StreamRows(const StreamTask& task) {
  using A = typename Traits<T>::A;
  using V = typename Traits<T>::V;
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  static const Scales<A> scales;
  // Multiplying by 1 changes nothing, so that sums need no branch.
  const A* const scale = task.finish == Finish::kSegmentMean    ? scales.mean
                         : task.finish == Finish::kSegmentSqrtn ? scales.sqrtn
                                                                : scales.one;
  const Id* const ids = IdsOf<Id>(task);
  const Id* at = ids + task.value_begin;
  const Id* const end = ids + task.value_end;
  const uint8_t* const table = task.table;
  const uint64_t table_rows = static_cast<uint64_t>(task.table_rows);
  const int64_t row_end = task.row_end;
  const int64_t out_stride = task.out_stride;
  Rows rows(task);
  uint8_t* out = task.out + task.row_begin * out_stride;
  for (int64_t row = task.row_begin; row < row_end; ++row, out += out_stride) {
    rows.Start(row, at - ids);
    const Id* const begin = at;
    int64_t n = 0;
    V acc[NV];
    for (int v = 0; v < NV; ++v) acc[v] = -V{};  // -0: the one number that changes no other when added
    for (; at != end && rows.Has(); ++at, rows.Next()) {
      if (end - at > kStreamAhead) PrefetchRow(RowAddress(table, at[kStreamAhead], kBytes), kBytes);
      int64_t id = static_cast<int64_t>(*at);
      if (__builtin_expect(static_cast<uint64_t>(id) >= table_rows, 0)) {
        if (kPrune && id < 0) continue;
        if (id < 0) id = WrapNegative(id, task.wrap);
        if (static_cast<uint64_t>(id) >= table_rows) return false;
      }
      const uint8_t* from = table + id * kBytes;
      for (int v = 0; v < NV; ++v) acc[v] += LoadAt<T, V>(from, v * kLanes);
      ++n;
    }
    if (!rows.Finished(at != end)) return false;
    if (__builtin_expect(n == 0, 0)) {
      StreamEmptyRow<T>(task, out);
    } else if (__builtin_expect(n > kInlineValues, 0)) {
      if (!StreamLongRow<T, NV, Id, kPrune>(task, begin - ids, at - ids, out)) return false;
    } else {
      for (int v = 0; v < NV; ++v)
        Store(acc[v] * scale[n], reinterpret_cast<typename Traits<T>::Out*>(out) + v * kLanes);
    }
  }
  return at == end;
}

template <typename T, int NV, typename Id, bool kPrune, int64_t kBytes>
static bool StreamWithStride(const StreamTask& task) {
  if (task.positions >= 0) return StreamRows<T, NV, Id, kPrune, FixedRows, kBytes>(task);
  if (task.splits) return StreamRows<T, NV, Id, kPrune, RowSplits<int64_t>, kBytes>(task);
  if (task.stride == 2) return StreamRows<T, NV, Id, kPrune, RowNumbers<int64_t, 2>, kBytes>(task);
  return task.rows_wide ? StreamRows<T, NV, Id, kPrune, RowNumbers<int64_t, 1>, kBytes>(task)
                        : StreamRows<T, NV, Id, kPrune, RowNumbers<int32_t, 1>, kBytes>(task);
}

// Rows of hash files start at multiples of 16 bytes, those of table files one right after the other. For most widths
// and formats that is the same, and one loop.
template <typename T, int NV, typename Id, bool kPrune>
static bool StreamWithRows(const StreamTask& task) {
  constexpr int64_t kDense = StoredBytes<T>(NV * static_cast<int64_t>(sizeof(FloatVector) / sizeof(float)));
  constexpr int64_t kAligned = (kDense + 15) / 16 * 16;
  if (task.row_bytes == kDense) return StreamWithStride<T, NV, Id, kPrune, kDense>(task);
  // Ids of a hash file are 64-bit row numbers.
  if constexpr (kAligned != kDense && sizeof(Id) == sizeof(int64_t)) {
    if (task.row_bytes == kAligned) return StreamWithStride<T, NV, Id, kPrune, kAligned>(task);
  }
  return false;
}

template <typename T, int NV>
static bool StreamWithIds(const StreamTask& task) {
  if (task.ids_wide) {
    return task.prune ? StreamWithRows<T, NV, int64_t, true>(task) : StreamWithRows<T, NV, int64_t, false>(task);
  }
  return task.prune ? StreamWithRows<T, NV, int32_t, true>(task) : StreamWithRows<T, NV, int32_t, false>(task);
}

template <typename T>
static bool StreamTyped(const StreamTask& task) {
  constexpr int64_t kLanes = sizeof(typename Traits<T>::V) / sizeof(typename Traits<T>::A);
  switch (task.width / kLanes) {
    case 1:
      return StreamWithIds<T, 1>(task);
    case 2:
      return StreamWithIds<T, 2>(task);
    case 4:
      return StreamWithIds<T, 4>(task);
    default:
      return StreamWithIds<T, 8>(task);
  }
}

// One stored row as the output wants it. kWidth 0: the width is task.width, and rows are task.row_bytes apart.
template <typename T, typename Id, int64_t kWidth>
static bool StreamCopy(const StreamTask& task) {
  const int64_t width = kWidth > 0 ? kWidth : task.width;
  const int64_t bytes = kWidth > 0 ? StoredBytes<T>(width) : task.row_bytes;
  const int64_t out_bytes = width * static_cast<int64_t>(sizeof(typename Traits<T>::Out));
  const Id* const ids = IdsOf<Id>(task);
  const uint64_t table_rows = static_cast<uint64_t>(task.table_rows);
  const int64_t last = task.value_end - 1;
  int64_t i = task.value_begin;
  uint8_t* out = task.out + task.row_begin * task.out_stride;
  for (int64_t row = task.row_begin; row < task.row_end; ++row, out += task.out_stride) {
    uint8_t* to = out;
    __builtin_prefetch(RowAddress(out, kOutAhead, task.out_stride), 1);
    for (int64_t p = 0; p < task.positions; ++p, ++i, to += out_bytes) {
      const int64_t ahead = i + kStreamAhead < last ? i + kStreamAhead : last;
      PrefetchRow(RowAddress(task.table, ids[ahead], bytes), bytes);
      int64_t id = static_cast<int64_t>(ids[i]);
      if (id < 0) id = WrapNegative(id, task.wrap);
      if (static_cast<uint64_t>(id) >= table_rows) return false;
      WidenRow<T, kWidth>(task.table + id * bytes, width, to);
    }
  }
  return true;
}

template <typename T, typename Id>
static bool StreamCopyAny(const StreamTask& task) {
  if (task.row_bytes != StoredBytes<T>(task.width)) return StreamCopy<T, Id, 0>(task);
  switch (task.width) {
    case 1:
      return StreamCopy<T, Id, 1>(task);
    case 8:
      return StreamCopy<T, Id, 8>(task);
    case 16:
      return StreamCopy<T, Id, 16>(task);
    case 32:
      return StreamCopy<T, Id, 32>(task);
    default:
      return StreamCopy<T, Id, 0>(task);
  }
}

template <typename T>
static bool StreamAny(const StreamTask& task) {
  if (task.copy) return task.ids_wide ? StreamCopyAny<T, int64_t>(task) : StreamCopyAny<T, int32_t>(task);
  return StreamTyped<T>(task);
}

// Formats that are only copied, never reduced, by stream kernels.
template <typename T>
static bool StreamOnlyCopy(const StreamTask& task) {
  if (!task.copy) return false;
  return task.ids_wide ? StreamCopyAny<T, int64_t>(task) : StreamCopyAny<T, int32_t>(task);
}

static bool Stream(RowFormat format, const StreamTask& task) {
  switch (format) {
    case RowFormat::kFloat32:
      return StreamAny<float>(task);
    case RowFormat::kFloat16ToFloat32:
      return StreamAny<Widened<Half>>(task);
    case RowFormat::kBFloat16ToFloat32:
      return StreamAny<Widened<BFloat16>>(task);
    case RowFormat::kInt8ToFloat32:
      return StreamAny<ScaledInt8>(task);
    case RowFormat::kFloat64:
      return StreamOnlyCopy<double>(task);
    case RowFormat::kFloat16:
      return StreamOnlyCopy<Half>(task);
    case RowFormat::kBFloat16:
      return StreamOnlyCopy<BFloat16>(task);
    case RowFormat::kInvalid:
      break;
  }
  return false;
}

static bool HasStream(RowFormat format, int64_t width) {
  constexpr int64_t kLanes = sizeof(FloatVector) / sizeof(float);
  switch (format) {
    case RowFormat::kFloat32:
    case RowFormat::kFloat16ToFloat32:
    case RowFormat::kBFloat16ToFloat32:
    case RowFormat::kInt8ToFloat32:
      break;
    default:
      return false;
  }
  const int64_t vectors = width / kLanes;
  return width % kLanes == 0 && (vectors == 1 || vectors == 2 || vectors == 4 || vectors == 8);
}
