// Loads and stores of the gather kernels: what lies in memory, and what it is in registers. Included by gather_impl.h
// inside its namespace, hence no includes and no guard here.
//
// A kernel has one type parameter T, which says how a row is stored: float, double, Half and BFloat16 rows keep their
// dtype in the output; Widened<Half>, Widened<BFloat16> and ScaledInt8 rows become floats.

template <typename T>
struct Widened {};
struct ScaledInt8 {};

// Stored: an element in the file. A: of the arithmetic. V: a vector of A. Out: an element of the output.
template <typename T>
struct Traits;
template <>
struct Traits<float> {
  using Stored = float;
  using A = float;
  using V = FloatVector;
  using Out = float;
};
template <>
struct Traits<double> {
  using Stored = double;
  using A = double;
  using V = DoubleVector;
  using Out = double;
};
template <>
struct Traits<Half> {
  using Stored = Half;
  using A = float;
  using V = FloatVector;
  using Out = Half;
};
template <>
struct Traits<BFloat16> {
  using Stored = BFloat16;
  using A = float;
  using V = FloatVector;
  using Out = BFloat16;
};
template <typename T>
struct Traits<Widened<T>> {
  using Stored = T;
  using A = float;
  using V = FloatVector;
  using Out = float;
};
template <>
struct Traits<ScaledInt8> {
  using Stored = int8_t;
  using A = float;
  using V = FloatVector;
  using Out = float;
};

template <typename T>
static constexpr int64_t StoredBytes(int64_t width) {
  return width * static_cast<int64_t>(sizeof(typename Traits<T>::Stored)) +
         (std::is_same_v<T, ScaledInt8> ? kScaleBytes : 0);
}

// --- one element -------------------------------------------------------------------------------------------------

static inline void LoadOne(const float* p, float* v) { *v = *p; }
static inline void LoadOne(const double* p, double* v) { *v = *p; }
static inline void LoadOne(const Half* p, float* v) {
#if defined(__AVX2__)
  *v = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(p->bits)));
#else
  *v = ToFloat(*p);
#endif
}
static inline void LoadOne(const BFloat16* p, float* v) { *v = ToFloat(*p); }
static inline void LoadOne(const int8_t* p, float* v) { *v = static_cast<float>(*p); }
static inline void StoreOne(float v, float* p) { *p = v; }
static inline void StoreOne(double v, double* p) { *p = v; }
static inline void StoreOne(float v, Half* p) { *p = ToHalf(v); }
static inline void StoreOne(float v, BFloat16* p) { *p = ToBFloat16(v); }

// --- vectors of floats from narrow elements ----------------------------------------------------------------------

template <int kLanes>
struct Lanes {
  typedef int8_t Int8 __attribute__((vector_size(kLanes)));
  typedef uint16_t Uint16 __attribute__((vector_size(kLanes * 2)));
  typedef int32_t Int32 __attribute__((vector_size(kLanes * 4)));
  typedef uint32_t Uint32 __attribute__((vector_size(kLanes * 4)));
  typedef float Float __attribute__((vector_size(kLanes * 4)));
};

// GCC makes one instruction of a widening __builtin_convertvector for few vector types only, hence the intrinsics.

template <typename L>
static inline typename L::Uint32 Widen(typename L::Uint16 narrow) {
  typename L::Uint32 wide;
#if defined(__AVX512F__)
  if constexpr (sizeof(wide) == 64) {
    __m256i bits;
    std::memcpy(&bits, &narrow, sizeof(bits));
    const __m512i result = _mm512_maskz_cvtepu16_epi32(0xffff, bits);
    std::memcpy(&wide, &result, sizeof(wide));
    return wide;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(wide) == 32) {
    __m128i bits;
    std::memcpy(&bits, &narrow, sizeof(bits));
    const __m256i result = _mm256_cvtepu16_epi32(bits);
    std::memcpy(&wide, &result, sizeof(wide));
    return wide;
  }
#endif
  wide = __builtin_convertvector(narrow, typename L::Uint32);
  return wide;
}

template <typename L>
static inline typename L::Int32 Widen(typename L::Int8 narrow) {
  typename L::Int32 wide;
#if defined(__AVX2__)
  __m128i bits = _mm_setzero_si128();
  std::memcpy(&bits, &narrow, sizeof(narrow));
#if defined(__AVX512F__)
  if constexpr (sizeof(wide) == 64) {
    const __m512i result = _mm512_maskz_cvtepi8_epi32(0xffff, bits);
    std::memcpy(&wide, &result, sizeof(wide));
  }
#endif
  if constexpr (sizeof(wide) == 32) {
    const __m256i result = _mm256_cvtepi8_epi32(bits);
    std::memcpy(&wide, &result, sizeof(wide));
  }
  if constexpr (sizeof(wide) == 16) {
    const __m128i result = _mm_cvtepi8_epi32(bits);
    std::memcpy(&wide, &result, sizeof(wide));
  }
#else
  wide = __builtin_convertvector(narrow, typename L::Int32);
#endif
  return wide;
}

template <typename V>
static inline V LoadVector(const BFloat16* p) {
  using L = Lanes<sizeof(V) / sizeof(float)>;
  typename L::Uint16 bits;
  std::memcpy(&bits, p, sizeof(bits));
  return reinterpret_cast<V>(Widen<L>(bits) << 16);
}

template <typename V>
static inline V LoadVector(const int8_t* p) {
  using L = Lanes<sizeof(V) / sizeof(float)>;
  typename L::Int8 numbers;
  std::memcpy(&numbers, p, sizeof(numbers));
  return __builtin_convertvector(Widen<L>(numbers), V);
}

template <typename V>
static inline V LoadVector(const Half* p) {
  V v;
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 16) {
    const __m128 wide = _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    std::memcpy(&v, &wide, sizeof(v));
  } else if constexpr (sizeof(V) == 32) {
    const __m256 wide = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    std::memcpy(&v, &wide, sizeof(v));
  }
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    const __m512 wide = _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    std::memcpy(&v, &wide, sizeof(v));
  }
#endif
#else
  // ToFloat (half.h), without branches.
  using L = Lanes<sizeof(V) / sizeof(float)>;
  using U = typename L::Uint32;
  typename L::Uint16 narrow;
  std::memcpy(&narrow, p, sizeof(narrow));
  const U bits = __builtin_convertvector(narrow, U);
  const U sign = (bits & 0x8000u) << 16;
  const U mantissa = bits & 0x3ffu;
  const U exponent = bits & 0x7c00u;
  const V small = __builtin_convertvector(reinterpret_cast<typename L::Int32>(mantissa), V) * 5.9604644775390625e-8f;
  const U normal = ((bits & 0x7fffu) << 13) + (112u << 23);
  const U quiet = reinterpret_cast<U>(mantissa != 0u) & 0x400000u;
  const U special = 0x7f800000u | (mantissa << 13) | quiet;
  const U is_small = reinterpret_cast<U>(exponent == 0u);
  const U is_special = reinterpret_cast<U>(exponent == 0x7c00u);
  const U magnitude =
      (is_small & reinterpret_cast<U>(small)) | (is_special & special) | (~(is_small | is_special) & normal);
  const U all = sign | magnitude;
  std::memcpy(&v, &all, sizeof(v));
#endif
  return v;
}

template <typename V, typename T>
static inline V Load(const T* p) {
  V v;
  if constexpr (sizeof(V) <= sizeof(double)) {
    LoadOne(p, &v);
  } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    std::memcpy(&v, p, sizeof(v));
  } else {
    v = LoadVector<V>(p);
  }
  return v;
}

template <typename V, typename T>
static inline void Store(V v, T* p) {
  if constexpr (sizeof(V) == sizeof(typename Traits<T>::A)) {
    StoreOne(v, p);
  } else if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    std::memcpy(p, &v, sizeof(v));
  } else {
    constexpr int kLanes = sizeof(V) / sizeof(float);
    float lanes[kLanes];
    std::memcpy(lanes, &v, sizeof(v));
    for (int i = 0; i < kLanes; ++i) StoreOne(lanes[i], p + i);
  }
}

// --- parts of a stored row ---------------------------------------------------------------------------------------

// Columns of a stored row from `column` on, as many as V has lanes.
template <typename T, typename V>
static inline V LoadAt(const uint8_t* row, int64_t column) {
  if constexpr (std::is_same_v<T, ScaledInt8>) {
    float scale;
    std::memcpy(&scale, row, sizeof(scale));
    return Load<V>(reinterpret_cast<const int8_t*>(row + kScaleBytes) + column) * scale;
  } else {
    return Load<V>(reinterpret_cast<const typename Traits<T>::Stored*>(row) + column);
  }
}

// A stored row as the output has it: its bytes, or the floats that they stand for. kWidth 0: the width is `width`.
template <typename T, int64_t kWidth>
static inline void WidenRow(const uint8_t* row, int64_t width, uint8_t* out) {
  if constexpr (kWidth > 0) width = kWidth;
  if constexpr (std::is_same_v<T, typename Traits<T>::Out>) {
    std::memcpy(out, row, static_cast<size_t>(width) * sizeof(T));
  } else {
    using V = FloatVector;
    using Short = Lanes<4>::Float;
    constexpr int64_t kLanes = sizeof(V) / sizeof(float);
    float* to = reinterpret_cast<float*>(out);
    int64_t c = 0;
    for (; c + kLanes <= width; c += kLanes) Store(LoadAt<T, V>(row, c), to + c);
    for (; c + 4 <= width; c += 4) Store(LoadAt<T, Short>(row, c), to + c);
    for (; c < width; ++c) to[c] = LoadAt<T, float>(row, c);
  }
}
