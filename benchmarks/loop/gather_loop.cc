// The bare loop that TfctrFusedLookup is measured against: safe mean of a sparse feature (negative ids dropped, rows
// without ids zero), 16 floats wide, straight from COO inputs into the concatenated output, with software prefetch.
// Same arithmetic as the op (and as stock SparseSegmentMean up to 9 ids per row); nothing else: no TensorFlow, no spec,
// no other widths, no sorting, an id out of range ends the loop.
#include <immintrin.h>

#include <chrono>
#include <cstdint>

namespace {

constexpr int64_t kWidth = 16;
constexpr int64_t kAhead = 12;  // ids
constexpr float kScale[10] = {1.f,       1.f / 1.f, 1.f / 2.f, 1.f / 3.f, 1.f / 4.f,
                              1.f / 5.f, 1.f / 6.f, 1.f / 7.f, 1.f / 8.f, 1.f / 9.f};

typedef float Vector __attribute__((vector_size(32)));

Vector Load(const float* p) {
  Vector v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

void Store(Vector v, float* p) { __builtin_memcpy(p, &v, sizeof(v)); }

// False: an id out of range, or a row not in order.
bool Feature(const float* table, int64_t table_rows, const int64_t* ids, const int64_t* indices, int64_t n,
             int64_t rows, float* out, int64_t out_stride) {
  int64_t i = 0;
  for (int64_t row = 0; row < rows; ++row, out += out_stride) {
    Vector low = {};
    Vector high = {};
    int64_t count = 0;
    for (; i < n && indices[2 * i] == row; ++i) {
      if (i + kAhead < n) __builtin_prefetch(table + ids[i + kAhead] * kWidth);
      const int64_t id = ids[i];
      if (id < 0) continue;
      if (id >= table_rows) return false;
      const float* from = table + id * kWidth;
      low += Load(from);
      high += Load(from + 8);
      ++count;
    }
    if (count < 10) {
      low *= kScale[count];
      high *= kScale[count];
    } else {
      low /= static_cast<float>(count);
      high /= static_cast<float>(count);
    }
    Store(low, out);
    Store(high, out + 8);
  }
  return i == n;
}

}  // namespace

// Nanoseconds for all features, or -1. `n[f]` ids of feature f; output [rows, features * 16].
extern "C" int64_t tfctr_gather_loop(int64_t features, int64_t rows, const float* const* tables, int64_t table_rows,
                                     const int64_t* const* ids, const int64_t* const* indices, const int64_t* n,
                                     float* out) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t f = 0; f < features; ++f) {
    if (!Feature(tables[f], table_rows, ids[f], indices[f], n[f], rows, out + f * kWidth, features * kWidth)) return -1;
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}
