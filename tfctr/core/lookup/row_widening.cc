#include "tfctr/core/lookup/row_widening.h"

#include <cstring>

#include "tfctr/core/lookup/half.h"
#include "tfctr/core/lookup/row_format.h"

namespace tfctr {
namespace {

void CopyFloats(const uint8_t* row, int64_t width, float* out) {
  std::memcpy(out, row, static_cast<size_t>(width) * sizeof(float));
}

template <typename Narrow>
void WidenHalves(const uint8_t* row, int64_t width, float* out) {
  for (int64_t c = 0; c < width; ++c) {
    Narrow stored;
    std::memcpy(&stored, row + c * static_cast<int64_t>(sizeof(stored)), sizeof(stored));
    out[c] = ToFloat(stored);
  }
}

void WidenInt8(const uint8_t* row, int64_t width, float* out) {
  float scale;
  std::memcpy(&scale, row, sizeof(scale));
  const int8_t* numbers = reinterpret_cast<const int8_t*>(row + kScaleBytes);
  for (int64_t c = 0; c < width; ++c) out[c] = static_cast<float>(numbers[c]) * scale;
}

}  // namespace

RowWidener RowWidenerOf(DType storage) {
  switch (storage) {
    case DType::kFloat32:
      return &CopyFloats;
    case DType::kFloat16:
      return &WidenHalves<Half>;
    case DType::kBFloat16:
      return &WidenHalves<BFloat16>;
    case DType::kInt8:
      return &WidenInt8;
    default:
      return nullptr;
  }
}

}  // namespace tfctr
