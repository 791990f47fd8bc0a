// Vectors that fill one register of the instruction set being compiled. No include guard: foreach_isa.h includes it
// once for each set. All functions are forced inline, so that vectors never cross calls.
#define REFORMER_INLINE inline __attribute__((always_inline))

namespace reformer::REFORMER_ISA {

template <class T>
struct VecOf {
  typedef T type __attribute__((vector_size(REFORMER_VECTOR_BYTES)));
  static constexpr int lanes = REFORMER_VECTOR_BYTES / int(sizeof(T));
};
template <class T>
using Vec = typename VecOf<T>::type;  // float or double
template <class T>
constexpr int kLanes = VecOf<T>::lanes;

template <class T>
REFORMER_INLINE Vec<T> broadcast(T value) {
  return value - Vec<T>{};  // x - 0 keeps the sign of zero, x + 0 does not
}

template <class T>
REFORMER_INLINE Vec<T> fma(Vec<T> a, Vec<T> b, Vec<T> c) {
  return a * b + c;  // contracted to one instruction if the set has it
}

// Load and store consecutive elements of any alignment, widened to and narrowed from the type of computation.
template <class S, class T>
REFORMER_INLINE Vec<S> load(const T* from) {
  if constexpr (std::is_same_v<S, T>) {
    Vec<S> v;
    std::memcpy(&v, from, sizeof v);
    return v;
#if defined(REFORMER_ISA_AVX512)
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, Half>) {
    return (Vec<S>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, BFloat16>) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return (Vec<S>)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
#elif defined(REFORMER_ISA_AVX2)
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, Half>) {
    return (Vec<S>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, BFloat16>) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return (Vec<S>)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
#endif
  } else {
    Vec<S> v;
    for (int i = 0; i < kLanes<S>; ++i) v[i] = Element<T>::load(from[i]);
    return v;
  }
}

template <class S, class T>
REFORMER_INLINE void store(T* to, Vec<S> v) {
  if constexpr (std::is_same_v<S, T>) {
    std::memcpy(to, &v, sizeof v);
#if defined(REFORMER_ISA_AVX512)
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, Half>) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(REFORMER_ISA_AVX2)
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, Half>) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#endif
  } else {
    for (int i = 0; i < kLanes<S>; ++i) to[i] = Element<T>::store(v[i]);
  }
}

// Load the first `count` lanes (0 to all); the others are zero, and memory beyond is not accessed.
template <class S, class T>
REFORMER_INLINE Vec<S> load_part(const T* from, int count) {
#if defined(REFORMER_ISA_AVX512)
  if constexpr (std::is_same_v<T, float>)
    return (Vec<S>)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
  if constexpr (std::is_same_v<T, double>)
    return (Vec<S>)_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1), from);
#endif
  T buffer[kLanes<S>] = {};
  for (int i = 0; i < count; ++i) buffer[i] = from[i];
  return load<S>(static_cast<const T*>(buffer));
}

template <class S, class T>
REFORMER_INLINE void store_part(T* to, Vec<S> v, int count) {
#if defined(REFORMER_ISA_AVX512)
  if constexpr (std::is_same_v<T, float>)
    return _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)v);
  if constexpr (std::is_same_v<T, double>)
    return _mm512_mask_storeu_pd(to, static_cast<__mmask8>((1u << count) - 1), (__m512d)v);
#endif
  T buffer[kLanes<S>];
  store<S>(buffer, v);
  for (int i = 0; i < count; ++i) to[i] = buffer[i];
}

}  // namespace reformer::REFORMER_ISA
