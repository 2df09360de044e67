#include "tfctr/core/embedding/gradient_sum.h"

#include <cmath>
#include <cstring>
#include <string>

namespace tfctr {
namespace {

constexpr size_t kLeastEntries = 64;
constexpr size_t kAhead = 16;

// Spreads keys over the upper bits, which number the entries.
inline uint64_t Mix(int64_t key, uint64_t salt) {
  uint64_t x = static_cast<uint64_t>(key) ^ salt;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  return x * 0x9e3779b97f4a7c15u;
}

// Whether all n floats are finite: the exponent of NaN and Inf is all ones.
bool AllFinite(const float* values, size_t n) {
  uint32_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    found |= static_cast<uint32_t>((bits & 0x7f800000u) == 0x7f800000u);
  }
  return found == 0;
}

// In double and in order, so that the result does not depend on vectors.
double SumOfSquares(const float* values, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

void ScaleToNorm(float* values, size_t n, double sum_of_squares, float limit) {
  const float norm = static_cast<float>(std::sqrt(sum_of_squares));
  if (norm <= limit) return;
  for (size_t i = 0; i < n; ++i) values[i] = values[i] * limit / norm;
}

}  // namespace

void GradientSum::Number(const int64_t* keys, size_t n) {
  size_t capacity = kLeastEntries;
  while (capacity < 2 * n) capacity *= 2;
  if (entries_.size() < capacity) {
    entries_.assign(capacity, Entry{0, 0, 0});
    batch_ = 0;
  }
  if (++batch_ == 0) {
    for (Entry& entry : entries_) entry.batch = 0;
    batch_ = 1;
  }
  // A table grown by a large batch is used as if it were as small as this batch needs: its entries stay in cache.
  const int shift = 64 - __builtin_ctzll(capacity);
  const size_t mask = capacity - 1;
  const uint64_t salt = salt_;
  Entry* entries = entries_.data();
  if (places_.size() < n) places_.resize(n);
  if (own_keys_.size() < n) own_keys_.resize(n);
  uint32_t* places = places_.data();
  int64_t* own_keys = own_keys_.data();
  uint32_t distinct = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(entries + (Mix(keys[i + kAhead], salt) >> shift), 1);
    const int64_t key = keys[i];
    size_t at = Mix(key, salt) >> shift;
    while (entries[at].batch == batch_ && entries[at].key != key) at = (at + 1) & mask;
    Entry& entry = entries[at];
    if (entry.batch != batch_) {
      entry = Entry{key, distinct, batch_};
      own_keys[distinct++] = key;
    }
    places[i] = entry.place;
  }
  size_ = distinct;
}

void GradientSum::Add(const float* grads, size_t n) {
  const size_t dim = static_cast<size_t>(dim_);
  if (own_sums_.size() < size_ * dim) own_sums_.resize(size_ * dim);
  float* sums = own_sums_.data();
  const uint32_t* places = places_.data();
  uint32_t begun = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(sums + places[i + kAhead] * dim, 1);
    const float* __restrict from = grads + i * dim;
    float* __restrict to = sums + places[i] * dim;
    if (places[i] == begun) {
      std::memcpy(to, from, dim * sizeof(float));
      ++begun;
    } else {
      for (size_t c = 0; c < dim; ++c) to[c] += from[c];
    }
  }
}

Status GradientSum::Sum(const int64_t* keys, size_t n, const float* grads, int dim) {
  dim_ = dim;
  Number(keys, n);
  if (size_ == n) {
    keys_ = keys;
    sums_ = grads;
  } else {
    Add(grads, n);
    keys_ = own_keys_.data();
    sums_ = own_sums_.data();
  }
  const size_t width = static_cast<size_t>(dim);
  if (AllFinite(sums_, size_ * width)) return Status::Ok();
  for (size_t i = 0; i < size_; ++i) {
    for (size_t c = 0; c < width; ++c) {
      const float x = sums_[i * width + c];
      if (!AllFinite(&x, 1)) {
        const char* what = x != x ? "nan" : x > 0 ? "inf" : "-inf";
        return Status::Invalid("the gradient of key " + std::to_string(keys_[i]) + " is not finite (" + what +
                               " in column " + std::to_string(c) + ")");
      }
    }
  }
  return Status::Ok();
}

void GradientSum::Clip(const ClipConfig& clip) {
  if (clip.kind == ClipConfig::Kind::kNone) return;
  const size_t width = static_cast<size_t>(dim_);
  const size_t total = size_ * width;
  if (sums_ != own_sums_.data()) {
    if (own_sums_.size() < total) own_sums_.resize(total);
    if (total > 0) std::memcpy(own_sums_.data(), sums_, total * sizeof(float));
    sums_ = own_sums_.data();
  }
  float* sums = own_sums_.data();
  switch (clip.kind) {
    case ClipConfig::Kind::kNone:
      break;
    case ClipConfig::Kind::kValue:
      for (size_t i = 0; i < total; ++i) {
        sums[i] = sums[i] > clip.limit ? clip.limit : sums[i] < -clip.limit ? -clip.limit : sums[i];
      }
      break;
    case ClipConfig::Kind::kNorm:
      for (size_t i = 0; i < size_; ++i) {
        ScaleToNorm(sums + i * width, width, SumOfSquares(sums + i * width, width), clip.limit);
      }
      break;
    case ClipConfig::Kind::kGlobalNorm:
      ScaleToNorm(sums, total, SumOfSquares(sums, total), clip.limit);
      break;
  }
}

}  // namespace tfctr
