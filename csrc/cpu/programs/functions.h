// Functions of vectors. For an ISA body, after vec.h and math.h; no include guard. For float, they are accurate to
// about one unit in the last place unless noted; for double, they are the C library's, lane by lane.

namespace reformer::REFORMER_ISA {

typedef int32_t Bits __attribute__((vector_size(REFORMER_VECTOR_BYTES)));

template <int kCount>
REFORMER_INLINE Vec<float> polynomial(Vec<float> x, const float (&of)[kCount]) {
  Vec<float> sum = broadcast(of[kCount - 1]);
#pragma GCC unroll 16
  for (int i = kCount - 2; i >= 0; --i) sum = fma<float>(sum, x, broadcast(of[i]));
  return sum;
}

REFORMER_INLINE Vec<float> magnitude(Vec<float> x) { return (Vec<float>)((Bits)x & 0x7fffffff); }
REFORMER_INLINE Vec<float> with_sign_of(Vec<float> x, Vec<float> sign) {
  return (Vec<float>)((Bits)x | ((Bits)sign & int32_t(0x80000000)));
}

// p * 2^n, where the integer n, from -149 (subnormal results are rounded once) to 128, is in the low bits of shifted =
// n + kShift.
constexpr float kShift = 12582912.0f;
REFORMER_INLINE Vec<float> times_power_of_2(Vec<float> p, Vec<float> shifted) {
#if defined(REFORMER_ISA_AVX512)
  return (Vec<float>)_mm512_scalef_ps((__m512)p, (__m512)(shifted - kShift));
#else
  // In two steps, since n may exceed a float's range of exponents.
  const Bits power = (Bits)shifted - (Bits)broadcast(kShift), half = power >> 1;
  return p * (Vec<float>)((half + 127) << 23) * (Vec<float>)((power - half + 127) << 23);
#endif
}

// e^x, 0 or infinity where the result exceeds a float's range.
REFORMER_INLINE Vec<float> whole_exp(Vec<float> x) {
  // (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2, fitted to a relative error of 5e-11.
  constexpr float kRest[] = {5.0000000687e-01f, 1.6666665856e-01f, 4.1666291173e-02f,
                             8.3334988658e-03f, 1.3944943625e-03f, 1.9790030116e-04f};
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  x = larger(broadcast(-104.0f), smaller(broadcast(89.0f), x));
  const Vec<float> shifted = fma<float>(x, broadcast(kLog2e), broadcast(kShift)), n = shifted - kShift;
  const Vec<float> r = fma<float>(n, broadcast(-kLn2Low), fma<float>(n, broadcast(-kLn2High), x));
  const Vec<float> p = fma<float>(polynomial(r, kRest), r * r, r) + 1.0f;
  return times_power_of_2(p, shifted);
}

// The logarithm of x, and a correction to it (`rest`), which is small, and 0 if x is far from 1.
template <bool kHasRest>
REFORMER_INLINE Vec<float> natural_log(Vec<float> x, Vec<float> rest) {
  // (log(1 + m) - m + m^2 / 2) / m^3 for 1 + m from sqrt(1/2) to sqrt(2), fitted to 7e-10 of the logarithm.
  constexpr float kRest[] = {3.3333312601e-01f,  -2.5000009620e-01f, 2.0002118846e-01f,
                             -1.6667994906e-01f, 1.4219548171e-01f,  -1.2405602317e-01f,
                             1.1888204143e-01f,  -1.1675591116e-01f, 6.7464790616e-02f};
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const Vec<float> zero = {}, infinity = broadcast(__builtin_inff());
  const auto tiny = x < broadcast(1.17549435e-38f);  // subnormal
  const Vec<float> normal = tiny ? x * 33554432.0f : x;
  const Bits bits = (Bits)normal - 0x3f3504f3;  // minus sqrt(1/2)
  const Bits exponent = (bits >> 23) - (tiny ? (Bits)(Bits{} + 25) : Bits{});
  Vec<float> m = (Vec<float>)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  if constexpr (kHasRest) m = rest == zero ? m : m + rest * (Vec<float>)((127 - exponent) << 23);
  const Vec<float> e = __builtin_convertvector(exponent, Vec<float>), square = m * m;
  Vec<float> sum = fma<float>(polynomial(m, kRest), square * m, e * kLn2Low);
  sum = fma<float>(square, broadcast(-0.5f), sum);
  sum = fma<float>(e, broadcast(kLn2High), m + sum);
  sum = x == zero ? -infinity : sum;
  sum = x < zero ? broadcast(__builtin_nanf("")) : sum;
  return ((x == infinity) | (x != x)) ? x : sum;
}
REFORMER_INLINE Vec<float> natural_log(Vec<float> x) { return natural_log<false>(x, x); }

REFORMER_INLINE Vec<float> hyperbolic_tangent(Vec<float> x) {
  // (tanh(x) / x - 1) / x^2 in x^2 up to 1.05, fitted to 5e-11.
  constexpr float kRest[] = {-3.3333332733e-01f, 1.3333310027e-01f,  -5.3965111533e-02f,
                             2.1848481457e-02f,  -8.7824959915e-03f, 3.3998397577e-03f,
                             -1.1608416494e-03f, 2.9263595577e-04f,  -3.8124970809e-05f};
  const Vec<float> size = magnitude(x), square = x * x;
  const Vec<float> near = fma<float>(polynomial(square, kRest) * square, x, x);
  const Vec<float> far = 1.0f - 2.0f / (whole_exp(size + size) + 1.0f);
  return size < broadcast(1.0f) ? near : with_sign_of(far, x);
}

REFORMER_INLINE Vec<float> error_function(Vec<float> x) {
  // erf(x) / x - 1 in x^2 up to 1, and -log(1 - erf(x)) from 1 to 4, both fitted to 3e-11 of erf.
  constexpr float kNear[] = {1.2837916706e-01f, -3.7612638435e-01f, 1.1283781974e-01f, -2.6865400038e-02f,
                             5.2209454225e-03f, -8.4828286973e-04f, 1.1256946852e-04f, -9.6415131121e-06f};
  constexpr float kFar[] = {-1.8804477921e-04f, 1.1295784448e+00f, 6.3321985413e-01f,  1.0841861763e-01f,
                            -2.5208281265e-02f, 4.2045706515e-03f, -4.4133808673e-04f, 2.1686989723e-05f};
  const Vec<float> size = smaller(broadcast(4.0f), magnitude(x));
  const Vec<float> near = fma<float>(x, polynomial(x * x, kNear), x);
  const Vec<float> far = 1.0f - whole_exp(-polynomial(size, kFar));
  return size < broadcast(1.0f) ? near : with_sign_of(far, x);
}

// The normal distribution's cdf, accurate to 2e-7 (1e-5 relative), and its density, from one exponential.
template <class S>
struct Normal {
  Vec<S> cdf, pdf;
};
REFORMER_INLINE Normal<float> normal(Vec<float> x) {
  // 2^f - 1 for |f| <= 1/2 over f, fitted to 2e-9, and cdf(-|x|) e^(x^2 / 2) / u for u = 1 / (1 + |x| kScale),
  // to 1.4e-8 of the cdf.
  constexpr float kPower[] = {6.9314720286e-01f, 2.4022647914e-01f, 5.5503324708e-02f,
                              9.6184373598e-03f, 1.3398874519e-03f, 1.5353361589e-04f};
  constexpr float kTail[] = {1.3671246951e-01f, 1.3181679768e-01f,  1.5131363551e-01f, -1.7698859133e-02f,
                             2.4834417902e-01f, -1.9471604268e-01f, 4.4227833573e-02f};
  constexpr float kScale = 3.4199704567e-01f, kHalfLog2e = 0.72134752f, kLargest = 208.0f;
  const Vec<float> zero = {}, square = smaller(broadcast(kLargest), x * x);
  const Vec<float> shifted = fma<float>(square, broadcast(-kHalfLog2e), broadcast(kShift));
  const Vec<float> f = fma<float>(square, broadcast(-kHalfLog2e), kShift - shifted);
  const Vec<float> e = times_power_of_2(fma<float>(f, polynomial(f, kPower), broadcast(1.0f)), shifted);
  const Vec<float> u = 1.0f / fma<float>(magnitude(x), broadcast(kScale), broadcast(1.0f));
  const Vec<float> tail = polynomial(u, kTail) * u * e;
  return {x > zero ? 1.0f - tail : tail, e * 0.39894228f};
}

template <class S>
REFORMER_INLINE Vec<S> square_root(Vec<S> x) {
#if defined(REFORMER_ISA_AVX512)
  if constexpr (std::is_same_v<S, float>) return (Vec<S>)_mm512_sqrt_ps((__m512)x);
#elif defined(REFORMER_ISA_AVX2)
  if constexpr (std::is_same_v<S, float>) return (Vec<S>)_mm256_sqrt_ps((__m256)x);
#endif
  for (int i = 0; i < kLanes<S>; ++i) x[i] = std::sqrt(x[i]);
  return x;
}

// log(1 + x), corrected for the rounding of the sum; beyond 1e8 there is nothing to correct.
REFORMER_INLINE Vec<float> natural_log_from_1(Vec<float> x) {
  const Vec<float> sum = x + 1.0f, lost = x - (sum - 1.0f);
  const Vec<float> found = natural_log<true>(sum, x < broadcast(1e8f) ? lost : Vec<float>{});
  return sum == broadcast(1.0f) ? x : found;
}

template <class Function>
REFORMER_INLINE Vec<double> by_lane(Vec<double> x, Function function) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = function(x[i]);
  return x;
}
REFORMER_INLINE Vec<double> magnitude(Vec<double> x) {
  return by_lane(x, [](double v) { return std::fabs(v); });
}
REFORMER_INLINE Vec<double> whole_exp(Vec<double> x) {
  return by_lane(x, [](double v) { return std::exp(v); });
}
REFORMER_INLINE Vec<double> natural_log(Vec<double> x) {
  return by_lane(x, [](double v) { return std::log(v); });
}
REFORMER_INLINE Vec<double> natural_log_from_1(Vec<double> x) {
  return by_lane(x, [](double v) { return std::log1p(v); });
}
REFORMER_INLINE Vec<double> hyperbolic_tangent(Vec<double> x) {
  return by_lane(x, [](double v) { return std::tanh(v); });
}
REFORMER_INLINE Vec<double> error_function(Vec<double> x) {
  return by_lane(x, [](double v) { return std::erf(v); });
}
REFORMER_INLINE Normal<double> normal(Vec<double> x) {
  return {(1.0 + error_function(x * 0.70710678118654752)) * 0.5, whole_exp(x * x * -0.5) * 0.39894228040143268};
}

}  // namespace reformer::REFORMER_ISA
