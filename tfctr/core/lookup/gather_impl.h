// Body of the gather kernels, compiled by gather_baseline.cc, gather_avx2.cc and gather_avx512.cc. No include guard on
// purpose: the includer defines TFCTR_ISA_NAMESPACE and TFCTR_VECTOR_BYTES first.
//
// Bit-equality across instruction sets: every column is computed by the same additions, multiplications and divisions
// in the same order whatever the vector length, and -ffp-contract=off keeps a*b+c two roundings.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tfctr/core/lookup/gather.h"
#include "tfctr/core/lookup/half.h"
#include "tfctr/core/lookup/row_format.h"

// The includers that compile for AVX2 and up switch F16C on by pragma, which sets no macro in time.
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tfctr {
namespace TFCTR_ISA_NAMESPACE {

typedef float FloatVector __attribute__((vector_size(TFCTR_VECTOR_BYTES)));
typedef double DoubleVector __attribute__((vector_size(TFCTR_VECTOR_BYTES)));

// Floats (doubles) per packet in TensorFlow's own kernels, whose reductions this file repeats.
constexpr int64_t kStockPacketBytes = 32;

// Own function: an instantiation of std::min compiled for AVX must not be the one that the linker keeps for everybody.
static inline int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

#include "tfctr/core/lookup/load_impl.h"

// --- sums of one output row, columns [column, column + NV vectors) -----------------------------------------------

template <typename T, typename V, int NV>
static inline void SumSegmentOrder(const uint8_t* const* rows, int64_t n, int64_t column, V* acc) {
  constexpr int64_t kLanes = sizeof(V) / sizeof(typename Traits<T>::A);
  int64_t first = n & 7;
  if (first == 0) first = 8;
  if (first == 1 && n > 1) first = 9;
  for (int v = 0; v < NV; ++v) acc[v] = LoadAt<T, V>(rows[0], column + v * kLanes);
  for (int64_t k = 1; k < first; ++k) {
    for (int v = 0; v < NV; ++v) acc[v] += LoadAt<T, V>(rows[k], column + v * kLanes);
  }
  for (int64_t at = first; at < n; at += 8) {
    V eight[NV];
    for (int v = 0; v < NV; ++v) eight[v] = LoadAt<T, V>(rows[at], column + v * kLanes);
    for (int64_t k = at + 1; k < at + 8; ++k) {
      for (int v = 0; v < NV; ++v) eight[v] += LoadAt<T, V>(rows[k], column + v * kLanes);
    }
    for (int v = 0; v < NV; ++v) acc[v] += eight[v];
  }
}

template <typename T, typename V>
static inline V LoadWeighted(const uint8_t* row, int64_t column, const typename Traits<T>::A* weight) {
  const V v = LoadAt<T, V>(row, column);
  return weight == nullptr ? v : v * *weight;
}

// `weights` null: none. Four interleaved sums when `interleaved`.
template <typename T, typename V>
static inline V SumSequential(const uint8_t* const* rows, const typename Traits<T>::A* weights, int64_t n,
                              int64_t column, bool interleaved) {
  const auto term = [&](int64_t k) {
    return LoadWeighted<T, V>(rows[k], column, weights == nullptr ? nullptr : weights + k);
  };
  V sum[4] = {V{}, V{}, V{}, V{}};
  int64_t k = 0;
  if (interleaved) {
    for (; k + 4 <= n; k += 4) {
      for (int i = 0; i < 4; ++i) sum[i] += term(k + i);
    }
    sum[0] += sum[1];
    sum[0] += sum[2];
    sum[0] += sum[3];
  }
  for (; k < n; ++k) sum[0] += term(k);
  return sum[0];
}

// --- the last step of an output row ------------------------------------------------------------------------------

template <typename A>
struct Scales {
  A mean[10];
  A sqrtn[10];
  A one[10];
  Scales() {
    for (int n = 0; n < 10; ++n) {
      one[n] = A(1);
      mean[n] = A(1) / A((n < 1 ? 1 : n));
      sqrtn[n] = A(1) / A(std::sqrt(static_cast<double>((n < 1 ? 1 : n))));
    }
  }
};

// What the sum of one output row is multiplied by or divided by.
template <typename A>
struct RowFinish {
  enum { kKeep, kMultiply, kDivide, kZero } op = kKeep;
  A by = A(1);
};

template <typename A>
static inline RowFinish<A> FinishOf(const ReduceTask& task, const Scales<A>& scales, int64_t row, int64_t n) {
  RowFinish<A> finish;
  switch (task.finish) {
    case Finish::kNone:
      break;
    case Finish::kSegmentMean:
    case Finish::kSegmentSqrtn: {
      const bool mean = task.finish == Finish::kSegmentMean;
      if (n < 10) {
        finish.op = RowFinish<A>::kMultiply;
        finish.by = mean ? scales.mean[n] : scales.sqrtn[n];
      } else {
        finish.op = RowFinish<A>::kDivide;
        finish.by = mean ? static_cast<A>(n) : static_cast<A>(std::sqrt(static_cast<double>(n)));
      }
      break;
    }
    case Finish::kDivide:
    case Finish::kDivideNoNan:
      finish.op = RowFinish<A>::kDivide;
      finish.by = static_cast<const A*>(task.divisors)[row];
      if (task.finish == Finish::kDivideNoNan && finish.by == A(0)) finish.op = RowFinish<A>::kZero;
      break;
  }
  return finish;
}

template <typename V, typename A>
static inline V Apply(V sum, const RowFinish<A>& finish) {
  switch (finish.op) {
    case RowFinish<A>::kMultiply:
      return sum * finish.by;
    case RowFinish<A>::kDivide:
      return sum / finish.by;
    case RowFinish<A>::kZero:
      return V{};
    default:
      return sum;
  }
}

template <typename O>
static void FillRow(O* out, int64_t width, bool nan) {
  using A = typename Traits<O>::A;
  const A value = nan ? std::numeric_limits<A>::quiet_NaN() : A(0);
  for (int64_t c = 0; c < width; ++c) StoreOne(value, out + c);
}

// --- reduction ---------------------------------------------------------------------------------------------------

// SparseSegment order, width == NV whole vectors: everything of a row in registers.
template <typename T, int NV>
static void ReduceExact(const ReduceTask& task) {
  using A = typename Traits<T>::A;
  using O = typename Traits<T>::Out;
  using V = typename Traits<T>::V;
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  static const Scales<A> scales;
  const uint8_t* const* list = task.list;
  uint8_t* out = task.out;
  for (int64_t row = 0; row < task.rows; ++row, out += task.out_stride) {
    const int64_t n = task.counts[row];
    if (n == 0) {
      FillRow(reinterpret_cast<O*>(out), task.width, task.empty_is_nan);
      continue;
    }
    if (task.ahead != nullptr) task.ahead->Fetch(n);
    V acc[NV];
    SumSegmentOrder<T, V, NV>(list, n, 0, acc);
    const RowFinish<A> finish = FinishOf(task, scales, row, n);
    for (int v = 0; v < NV; ++v) Store(Apply(acc[v], finish), reinterpret_cast<O*>(out) + v * kLanes);
    list += n;
  }
}

// Columns of the output row that stock sums in whole packets: [*begin, *end). The others are summed one by one.
template <typename T>
static inline void PacketColumns(const ReduceTask& task, int64_t row, int64_t* begin, int64_t* end) {
  constexpr int64_t kPacket = kStockPacketBytes / static_cast<int64_t>(sizeof(typename Traits<T>::A));
  *begin = 0;
  if (task.order == AddOrder::kReduceSum) {
    const int64_t phase = ((task.first_row + row) % kPacket) * (task.width % kPacket) % kPacket;
    *begin = Min(task.width, (kPacket - phase) % kPacket);
  }
  *end = *begin + (task.width - *begin) / kPacket * kPacket;
}

// Any width and order: whole vectors, then single columns.
template <typename T>
static void ReduceGeneric(const ReduceTask& task) {
  using A = typename Traits<T>::A;
  using O = typename Traits<T>::Out;
  using V = typename Traits<T>::V;
  constexpr int64_t kLanes = sizeof(V) / sizeof(A);
  static const Scales<A> scales;
  const A* weights = static_cast<const A*>(task.weights);
  const uint8_t* const* list = task.list;
  uint8_t* out_bytes = task.out;
  for (int64_t row = 0; row < task.rows; ++row, out_bytes += task.out_stride) {
    O* out = reinterpret_cast<O*>(out_bytes);
    const int64_t n = task.counts[row];
    if (n == 0) {
      FillRow(out, task.width, task.empty_is_nan);
      continue;
    }
    if (task.ahead != nullptr) task.ahead->Fetch(n);
    const RowFinish<A> finish = FinishOf(task, scales, row, n);
    int64_t c = 0;
    if (task.order == AddOrder::kSparseSegment && weights == nullptr) {
      for (; c + 4 * kLanes <= task.width; c += 4 * kLanes) {
        V acc[4];
        SumSegmentOrder<T, V, 4>(list, n, c, acc);
        for (int v = 0; v < 4; ++v) Store(Apply(acc[v], finish), out + c + v * kLanes);
      }
      for (; c + kLanes <= task.width; c += kLanes) {
        V acc[1];
        SumSegmentOrder<T, V, 1>(list, n, c, acc);
        Store(Apply(acc[0], finish), out + c);
      }
      for (; c < task.width; ++c) {
        A acc[1];
        SumSegmentOrder<T, A, 1>(list, n, c, acc);
        StoreOne(Apply(acc[0], finish), out + c);
      }
    } else {
      int64_t begin = 0;
      int64_t end = 0;
      if (n >= 16 && task.order != AddOrder::kPlain) PacketColumns<T>(task, row, &begin, &end);
      for (; c + kLanes <= task.width; c += kLanes) {
        const bool inside = c >= begin && c + kLanes <= end;
        const bool outside = c + kLanes <= begin || c >= end;
        if (!inside && !outside) {  // stock's packets and ours overlap here: column by column
          for (int64_t i = c; i < c + kLanes; ++i) {
            const A sum = SumSequential<T, A>(list, weights, n, i, i >= begin && i < end);
            StoreOne(Apply(sum, finish), out + i);
          }
          continue;
        }
        Store(Apply(SumSequential<T, V>(list, weights, n, c, inside), finish), out + c);
      }
      for (; c < task.width; ++c) {
        const A sum = SumSequential<T, A>(list, weights, n, c, c >= begin && c < end);
        StoreOne(Apply(sum, finish), out + c);
      }
    }
    list += n;
    if (weights != nullptr) weights += n;
  }
}

template <typename T>
static void ReduceTyped(const ReduceTask& task) {
  constexpr int64_t kLanes = sizeof(typename Traits<T>::V) / sizeof(typename Traits<T>::A);
  if (task.order == AddOrder::kSparseSegment && task.weights == nullptr && task.width % kLanes == 0) {
    switch (task.width / kLanes) {
      case 1:
        return ReduceExact<T, 1>(task);
      case 2:
        return ReduceExact<T, 2>(task);
      case 4:
        return ReduceExact<T, 4>(task);
      case 8:
        return ReduceExact<T, 8>(task);
      default:
        break;
    }
  }
  ReduceGeneric<T>(task);
}

static void Reduce(RowFormat format, const ReduceTask& task) {
  switch (format) {
    case RowFormat::kFloat32:
      return ReduceTyped<float>(task);
    case RowFormat::kFloat64:
      return ReduceTyped<double>(task);
    case RowFormat::kFloat16:
      return ReduceTyped<Half>(task);
    case RowFormat::kBFloat16:
      return ReduceTyped<BFloat16>(task);
    case RowFormat::kFloat16ToFloat32:
      return ReduceTyped<Widened<Half>>(task);
    case RowFormat::kBFloat16ToFloat32:
      return ReduceTyped<Widened<BFloat16>>(task);
    case RowFormat::kInt8ToFloat32:
      return ReduceTyped<ScaledInt8>(task);
    case RowFormat::kInvalid:
      return;
  }
}

// --- copies ------------------------------------------------------------------------------------------------------

// kBytes 0: the size is task.row_bytes.
template <int64_t kBytes>
static void CopyRows(const CopyTask& task) {
  const int64_t bytes = kBytes > 0 ? kBytes : task.row_bytes;
  uint8_t* out = task.out;
  int64_t place = task.first_in_row;
  for (int64_t i = 0; i < task.entries; ++i) {
    if (task.ahead != nullptr) task.ahead->Fetch(1);
    std::memcpy(out + place * bytes, task.list[i], static_cast<size_t>(bytes));
    if (++place == task.per_row) {
      place = 0;
      out += task.out_stride;
    }
  }
}

template <typename T>
static void CopyWidened(const CopyTask& task) {
  uint8_t* out = task.out;
  int64_t place = task.first_in_row;
  for (int64_t i = 0; i < task.entries; ++i) {
    if (task.ahead != nullptr) task.ahead->Fetch(1);
    WidenRow<T, 0>(task.list[i], task.width, out + place * task.row_bytes);
    if (++place == task.per_row) {
      place = 0;
      out += task.out_stride;
    }
  }
}

static void Copy(RowFormat format, const CopyTask& task) {
  switch (format) {
    case RowFormat::kFloat16ToFloat32:
      return CopyWidened<Widened<Half>>(task);
    case RowFormat::kBFloat16ToFloat32:
      return CopyWidened<Widened<BFloat16>>(task);
    case RowFormat::kInt8ToFloat32:
      return CopyWidened<ScaledInt8>(task);
    default:
      break;
  }
  switch (task.row_bytes) {
    case 4:
      return CopyRows<4>(task);
    case 16:
      return CopyRows<16>(task);
    case 32:
      return CopyRows<32>(task);
    case 64:
      return CopyRows<64>(task);
    case 128:
      return CopyRows<128>(task);
    case 256:
      return CopyRows<256>(task);
    default:
      return CopyRows<0>(task);
  }
}

#include "tfctr/core/lookup/stream_impl.h"

// --- max_norm ----------------------------------------------------------------------------------------------------

template <typename T>
static inline typename Traits<T>::A Round(typename Traits<T>::A value) {
  T stored;
  StoreOne(value, &stored);
  typename Traits<T>::A rounded;
  LoadOne(&stored, &rounded);
  return rounded;
}

// Sum of squares in the order of stock's Sum over the innermost axis: packets, four of them at a time where there are
// enough, the lanes of the sum folded by halves, the rest one by one.
template <typename T>
static typename Traits<T>::A SquareSum(const uint8_t* row, int64_t width) {
  using A = typename Traits<T>::A;
  using O = typename Traits<T>::Out;
  constexpr int64_t kPacket = kStockPacketBytes / static_cast<int64_t>(sizeof(A));
  const auto square = [row](int64_t c) {
    const A v = LoadAt<T, A>(row, c);
    return Round<O>(v * v);
  };
  A sum[4][kPacket] = {};
  int64_t c = 0;
  for (; c + 4 * kPacket <= width; c += 4 * kPacket) {
    for (int64_t i = 0; i < 4 * kPacket; ++i) sum[i / kPacket][i % kPacket] += square(c + i);
  }
  for (int s = 1; s < 4; ++s) {
    for (int64_t i = 0; i < kPacket; ++i) sum[0][i] += sum[s][i];
  }
  for (; c + kPacket <= width; c += kPacket) {
    for (int64_t i = 0; i < kPacket; ++i) sum[0][i] += square(c + i);
  }
  A rest = A(0);
  for (; c < width; ++c) rest += square(c);
  for (int64_t half = kPacket / 2; half >= 1; half /= 2) {
    for (int64_t i = 0; i < half; ++i) sum[0][i] += sum[0][i + half];
  }
  return Round<O>(sum[0][0] + rest);
}

template <typename T>
static void ClipTyped(const uint8_t* const* list, int64_t entries, int64_t width, double max_norm, uint8_t* out_bytes) {
  using A = typename Traits<T>::A;
  using O = typename Traits<T>::Out;
  const A limit = Round<O>(static_cast<A>((max_norm > 0.0 ? max_norm : 0.0)));
  O* out = reinterpret_cast<O*>(out_bytes);
  for (int64_t k = 0; k < entries; ++k, out += width) {
    const uint8_t* row = list[k];
    const A squares = SquareSum<T>(row, width);
    const A norm = squares > A(0) ? Round<O>(std::sqrt(squares)) : squares;
    const A divisor = norm > limit || norm != norm ? norm : limit;
    for (int64_t c = 0; c < width; ++c) {
      StoreOne(Round<O>(LoadAt<T, A>(row, c) * limit) / divisor, out + c);
    }
  }
}

static void Clip(RowFormat format, const uint8_t* const* list, int64_t entries, int64_t width, double max_norm,
                 uint8_t* out) {
  switch (format) {
    case RowFormat::kFloat32:
      return ClipTyped<float>(list, entries, width, max_norm, out);
    case RowFormat::kFloat64:
      return ClipTyped<double>(list, entries, width, max_norm, out);
    case RowFormat::kFloat16:
      return ClipTyped<Half>(list, entries, width, max_norm, out);
    case RowFormat::kBFloat16:
      return ClipTyped<BFloat16>(list, entries, width, max_norm, out);
    case RowFormat::kFloat16ToFloat32:
      return ClipTyped<Widened<Half>>(list, entries, width, max_norm, out);
    case RowFormat::kBFloat16ToFloat32:
      return ClipTyped<Widened<BFloat16>>(list, entries, width, max_norm, out);
    case RowFormat::kInt8ToFloat32:
      return ClipTyped<ScaledInt8>(list, entries, width, max_norm, out);
    case RowFormat::kInvalid:
      return;
  }
}

static constexpr GatherKernels kKernels = {&Stream, &HasStream, &Reduce, &Copy, &Clip};

}  // namespace TFCTR_ISA_NAMESPACE
}  // namespace tfctr
