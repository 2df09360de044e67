#include "tfctr/core/lookup/row_narrowing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tfctr/core/lookup/half.h"
#include "tfctr/core/lookup/row_format.h"

namespace tfctr {
namespace {

constexpr float kMaxInt8 = 127.0f;

// Each Write* turns one row into its stored form and widens *error; "" or what stands against it.

template <typename Narrow, Narrow (*kNarrow)(float)>
std::string WriteHalves(const float* row, int64_t width, uint8_t* out, double* error) {
  for (int64_t c = 0; c < width; ++c) {
    const Narrow stored = kNarrow(row[c]);
    std::memcpy(out + c * static_cast<int64_t>(sizeof(stored)), &stored, sizeof(stored));
    if (!std::isfinite(row[c])) continue;
    const float read = ToFloat(stored);
    if (!std::isfinite(read)) return "holds " + std::to_string(row[c]) + ", which is too large";
    *error = std::max(*error, std::fabs(static_cast<double>(read) - static_cast<double>(row[c])));
  }
  return "";
}

std::string WriteInt8(const float* row, int64_t width, uint8_t* out, double* error) {
  float largest = 0.0f;
  for (int64_t c = 0; c < width; ++c) {
    if (!std::isfinite(row[c])) return std::isnan(row[c]) ? "holds NaN" : "holds an infinity";
    largest = std::max(largest, std::fabs(row[c]));
  }
  float scale = largest / kMaxInt8;
  if (scale < std::numeric_limits<float>::min()) scale = 0.0f;
  std::memcpy(out, &scale, sizeof(scale));
  for (int64_t c = 0; c < width; ++c) {
    const float number = scale == 0.0f ? 0.0f : std::nearbyint(row[c] / scale);
    const float kept = std::min(kMaxInt8, std::max(-kMaxInt8, number));
    out[kScaleBytes + c] = static_cast<uint8_t>(static_cast<int8_t>(kept));
    *error = std::max(*error, std::fabs(static_cast<double>(kept * scale) - static_cast<double>(row[c])));
  }
  return "";
}

}  // namespace

RowNarrower RowNarrowerOf(DType storage) {
  switch (storage) {
    case DType::kFloat16:
      return &WriteHalves<Half, &ToHalf>;
    case DType::kBFloat16:
      return &WriteHalves<BFloat16, &ToBFloat16>;
    case DType::kInt8:
      return &WriteInt8;
    default:
      return nullptr;
  }
}

}  // namespace tfctr
