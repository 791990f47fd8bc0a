// Functions of floats: NVIDIA's own; for AMD GPUs composed of hardware instructions, since no device library is linked.
#pragma once

#include "in_double.h"
#include "platform.h"
#include "types.h"

namespace reformer {

// a * b + c, rounded once.
#if defined(REFORMER_NVIDIA)
DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
#else
DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#endif

template <int kCount>
DEVICE float polynomial(float x, const float (&of)[kCount]) {
  float sum = of[kCount - 1];
  UNROLL
  for (int i = kCount - 2; i >= 0; --i) sum = multiply_add(sum, x, of[i]);
  return sum;
}

#if defined(REFORMER_NVIDIA)
DEVICE float exact_exp(float x) { return expf(x); }
DEVICE float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
DEVICE float log_of(float x) { return logf(x); }
DEVICE float exact_log1p(float x) { return log1pf(x); }
// Logarithm to base 2 for x >= 2^-126, or 0; absolute error 2e-7 where it is near 0.
DEVICE float log_to_base_2(float x) {
  float log;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log) : "f"(x));
  return log;
}
DEVICE float sqrt_of(float x) { return sqrtf(x); }
DEVICE float rsqrt_of(float x) { return rsqrtf(x); }
DEVICE float exact_tanh(float x) { return tanhf(x); }
DEVICE float erf_of(float x) { return erff(x); }
DEVICE float expm1_of(float x) { return expm1f(x); }
DEVICE float log2_of(float x) { return log2f(x); }
DEVICE float log10_of(float x) { return log10f(x); }
DEVICE float sin_of(float x) { return sinf(x); }
DEVICE float cos_of(float x) { return cosf(x); }
DEVICE float floor_of(float x) { return floorf(x); }
DEVICE float round_of(float x) { return rintf(x); }
DEVICE float pow_of(float x, float y) { return powf(x, y); }
DEVICE float fmod_of(float x, float y) { return fmodf(x, y); }
DEVICE float atan2_of(float y, float x) { return atan2f(y, x); }
DEVICE float copysign_of(float size, float sign) { return copysignf(size, sign); }
// Accurate to two units in the last place: an exact quotient takes a branch and ten more instructions.
DEVICE float full_quotient(float a, float b) {
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
}
DEVICE float reciprocal_of(float x) {
  float reciprocal;
  asm("rcp.approx.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}
// Flushes numbers below 2^-126 to 0, for callers that accept that.
DEVICE float normal_reciprocal(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}
// NaN if either is NaN.
DEVICE float larger_of(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
DEVICE float smaller_of(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}
#else
DEVICE float full_quotient(float a, float b) { return a / b; }
DEVICE float larger_of(float a, float b) { return a > b || a != a ? a : b; }
DEVICE float smaller_of(float a, float b) { return a < b || a != a ? a : b; }
#endif

#if defined(REFORMER_EMULATOR)
DEVICE float exact_exp(float x) { return __builtin_expf(x); }
DEVICE float power_of_2(float x) { return __builtin_exp2f(x); }
DEVICE float log_of(float x) { return __builtin_logf(x); }
DEVICE float exact_log1p(float x) { return __builtin_log1pf(x); }
DEVICE float log_to_base_2(float x) { return __builtin_log2f(x); }
DEVICE float reciprocal_of(float x) { return 1.0f / x; }
DEVICE float normal_reciprocal(float x) { return 1.0f / x; }
DEVICE float sqrt_of(float x) { return __builtin_sqrtf(x); }
DEVICE float rsqrt_of(float x) { return 1.0f / __builtin_sqrtf(x); }
DEVICE float exact_tanh(float x) { return __builtin_tanhf(x); }
DEVICE float erf_of(float x) { return __builtin_erff(x); }
#elif defined(REFORMER_AMD)
// 2^t from the instruction, corrected for the rounding of t = x log2(e).
DEVICE float power_of_2(float x) { return __builtin_amdgcn_exp2f(x); }
DEVICE float exact_exp(float x) {
  constexpr float kLog2e = 1.44269504f, kLog2eRest = 1.92596303e-8f, kLn2 = 0.693147181f;
  const float t = x * kLog2e;
  const float rest = multiply_add(x, kLog2e, -t) + x * kLog2eRest;
  const float power = power_of_2(t);
  return power - power == 0 ? multiply_add(power, rest * kLn2, power) : power;
}
DEVICE float reciprocal_of(float x) { return __builtin_amdgcn_rcpf(x); }
DEVICE float normal_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
DEVICE float log_to_base_2(float x) { return __builtin_amdgcn_logf(x); }
DEVICE float log_of(float x) { return log_to_base_2(x) * 0.693147181f; }
// Same algorithm as natural_log_from_1() of csrc/cpu/programs/functions.h.
DEVICE float exact_log1p(float x) {
  const float sum = x + 1.0f, lost = x - (sum - 1.0f);
  return log_of(sum) + (x > -1.0f && x < 1e8f ? lost / sum : 0.0f);
}
DEVICE float sqrt_of(float x) { return __builtin_amdgcn_sqrtf(x); }
DEVICE float rsqrt_of(float x) { return __builtin_amdgcn_rsqf(x); }
// The fits are documented in csrc/cpu/programs/functions.h.
DEVICE float exact_tanh(float x) {
  constexpr float kRest[] = {-3.3333332733e-01f, 1.3333310027e-01f,  -5.3965111533e-02f,
                             2.1848481457e-02f,  -8.7824959915e-03f, 3.3998397577e-03f,
                             -1.1608416494e-03f, 2.9263595577e-04f,  -3.8124970809e-05f};
  const float size = __builtin_fabsf(x), square = x * x;
  if (size < 1) return multiply_add(polynomial(square, kRest) * square, x, x);
  return __builtin_copysignf(1.0f - 2.0f / (exact_exp(size + size) + 1.0f), x);
}
DEVICE float erf_of(float x) {
  constexpr float kNear[] = {1.2837916706e-01f, -3.7612638435e-01f, 1.1283781974e-01f, -2.6865400038e-02f,
                             5.2209454225e-03f, -8.4828286973e-04f, 1.1256946852e-04f, -9.6415131121e-06f};
  constexpr float kFar[] = {-1.8804477921e-04f, 1.1295784448e+00f, 6.3321985413e-01f,  1.0841861763e-01f,
                            -2.5208281265e-02f, 4.2045706515e-03f, -4.4133808673e-04f, 2.1686989723e-05f};
  const float size = __builtin_fabsf(x);
  if (size < 1) return multiply_add(x, polynomial(x * x, kNear), x);
  if (size > 4) return __builtin_copysignf(1.0f, x);
  return size == size ? __builtin_copysignf(1.0f - exact_exp(-polynomial(size, kFar)), x) : x;
}
#endif

DEVICE float abs_of(float x) { return bits_to_float(float_to_bits(x) & 0x7fffffffu); }

// For 16-bit results, the power of 2 of a product: the error from rounding the product, 6e-8 of the exponent, is far
// below the error of the results.
template <class Precision>
DEVICE float exp_of(float x) {
  return sizeof(Precision) == 2 ? power_of_2(x * 1.44269504f) : exact_exp(x);
}
template <class Precision>
DEVICE float sigmoid_of(float x) {
  const float divisor = 1.0f + exp_of<Precision>(-x);
  return sizeof(Precision) == 2 ? normal_reciprocal(divisor) : full_quotient(1.0f, divisor);
}
// For bf16 results from an exponential, whose error of 1e-7 counts where the number is small: there it is x.
template <class Precision>
DEVICE float tanh_of(float x) {
  if (!is_bf16<Precision>) return exact_tanh(x);
  const float far = multiply_add(-2.0f, normal_reciprocal(1.0f + power_of_2(x * 2.88539008f)), 1.0f);
  return abs_of(x) < 0.01f ? x : far;
}
// For 16-bit results, a product with the reciprocal, which is computed once if many numbers are divided by the same b.
// Infinite or NaN if b is below 2^-128.
template <class Precision>
DEVICE float quotient_of(float a, float b) {
  return sizeof(Precision) == 2 ? a * reciprocal_of(b) : full_quotient(a, b);
}
// For 16-bit results: accurate to 1e-6.
template <class Precision>
DEVICE float log1p_of(float x) {
  if (sizeof(Precision) == 4) return exact_log1p(x);
  const float log = log_to_base_2(1.0f + x) * 0.693147181f;
  return abs_of(x) < 0.015625f ? multiply_add(x * x, multiply_add(x, 0.333333333f, -0.5f), x) : log;
}
// True if functions of bf16 results may have errors that are small beside those of rounding: in programs on the sums of
// a product, where an instruction takes three cycles, since the tensor cores use the registers, too.
#if defined(REFORMER_ON_SUMS)
template <class Precision>
constexpr bool kIsShort = is_bf16<Precision>;
#else
template <class Precision>
constexpr bool kIsShort = false;
#endif
// e^(-x^2 / 2), which normal_cdf() and normal_pdf() share.
template <class Precision>
DEVICE float bell_of(float x) {
  return sizeof(Precision) == 2 ? power_of_2(x * x * -0.721347520f) : exact_exp(-0.5f * x * x);
}
template <class Precision>
DEVICE float normal_pdf_of(float x) {
  if (kIsShort<Precision>) return power_of_2(multiply_add(x * x, -0.721347520f, -1.32574806f));
  return 0.398942280f * bell_of<Precision>(x);
}
// For 16-bit results the tail is e^(-x^2 / 2) times a polynomial of t = 1 / (1 + 0.3 |x|) without a constant term. It
// is fitted for |x| up to 13.5 (by Lawson's weighted least squares): to 8e-7 of the tail up to 1, to 3e-5 beyond 5. The
// short form is a power of 2, likewise fitted for |x| up to 5.5: to 1.2e-4 of the tail up to 2, to 3e-4 up to 4, to
// 1.3e-3 up to 5.5; beyond, the tail is below 2e-8.
template <class Precision>
DEVICE float normal_cdf_of(float x) {
  if (sizeof(Precision) == 4) return 0.5f * (1.0f + erf_of(0.707106781f * x));
  if (kIsShort<Precision>) {
    constexpr float kPower[] = {-1.00015867f,   -1.14860415f,   -0.465481669f,
                                -0.0471320637f, 0.00547353411f, -0.000282324938f};
    const float tail = power_of_2(polynomial(abs_of(x), kPower));
    return x > 0 ? 1.0f - tail : tail;
  }
  constexpr float kFit[] = {0.120102565f, 0.113236098f, 0.147000686f, -0.0234658670f, 0.222713366f, -0.0795872190f};
  const float t = normal_reciprocal(multiply_add(abs_of(x), 0.3f, 1.0f));
  const float tail = bell_of<Precision>(x) * (polynomial(t, kFit) * t);
  return x > 0 ? 1.0f - tail : tail;
}

}  // namespace reformer
