// Functions on and across vectors of float. For an ISA body, after vec.h; no include guard.
#include <utility>

namespace reformer::REFORMER_ISA {

// The larger and the smaller of each pair of lanes; b if one is NaN.
REFORMER_INLINE Vec<float> larger(Vec<float> a, Vec<float> b) {
#if defined(REFORMER_ISA_AVX512)
  return (Vec<float>)_mm512_max_ps((__m512)a,
                                   (__m512)b);  // GCC 12 would make a comparison and a blend of the line below
#else
  return a > b ? a : b;
#endif
}
REFORMER_INLINE Vec<float> smaller(Vec<float> a, Vec<float> b) {
#if defined(REFORMER_ISA_AVX512)
  return (Vec<float>)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}

// e^x with a relative error below 2e-7; 1e-38 for everything below -87.3, 1e38 for everything above 88. NaN stays NaN.
REFORMER_INLINE Vec<float> exp(Vec<float> x) {
  typedef int32_t Bits __attribute__((vector_size(REFORMER_VECTOR_BYTES)));
  // e^x = 2^n e^r with an integer n and |r| <= ln(2) / 2. Adding kShift rounds to an integer, which is then in the low
  // bits of the sum. ln(2) is split into two parts, so that the first product is exact.
  constexpr float kShift = 12582912.0f, kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  x = smaller(broadcast(88.0f), x);
  x = larger(broadcast(-87.3f), x);
  const Vec<float> shifted = fma<float>(x, broadcast(kLog2e), broadcast(kShift));
  const Vec<float> n = shifted - kShift;
  const Vec<float> r = fma<float>(n, broadcast(-kLn2Low), fma<float>(n, broadcast(-kLn2High), x));
  // (e^r - 1 - r) / r^2, after Cephes' expf.
  Vec<float> p = broadcast(1.9875691500e-4f);
  p = fma<float>(p, r, broadcast(1.3981999507e-3f));
  p = fma<float>(p, r, broadcast(8.3334519073e-3f));
  p = fma<float>(p, r, broadcast(4.1665795894e-2f));
  p = fma<float>(p, r, broadcast(1.6666665459e-1f));
  p = fma<float>(p, r, broadcast(5.0000001201e-1f));
  p = fma<float>(p, r * r, r + 1.0f);
  const Bits power = ((Bits)shifted << 23) + (127 << 23);
  return p * (Vec<float>)power;
}

template <int kDistance, int... kLane>
REFORMER_INLINE Vec<float> rotated(Vec<float> v, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(v, v, ((kLane + kDistance) % kLanes<float>)...);
}

// The sum of all lanes, broadcast to every lane.
template <int kDistance = kLanes<float> / 2>
REFORMER_INLINE Vec<float> sum_of_lanes(Vec<float> v) {
  v += rotated<kDistance>(v, std::make_integer_sequence<int, kLanes<float>>{});
  if constexpr (kDistance > 1)
    return sum_of_lanes<kDistance / 2>(v);
  else
    return v;
}

}  // namespace reformer::REFORMER_ISA
