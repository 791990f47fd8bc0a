// Functions that AMD GPUs (and the emulator, which stands for them) compute in fp64, since no device library is linked.
#pragma once

#include "platform.h"

#if !defined(REFORMER_NVIDIA)
namespace reformer {

template <class D>
struct BitsOf {
  typedef long long type;
};
DEVICE long long bits_of(double x) { return __builtin_bit_cast(long long, x); }
template <class D>
DEVICE D number_of(long long bits) {
  return __builtin_bit_cast(D, bits);
}
DEVICE double absolute_of(double x) { return __builtin_fabs(x); }
DEVICE double signed_as(double size, double sign) { return __builtin_copysign(size, sign); }

#define WIDE DEVICE
#include "wide_functions.h"
#undef WIDE

DEVICE float expm1_of(float x) { return float(wide_expm1(double(x))); }
DEVICE float log2_of(float x) { return float(wide_log_to_base_2(double(x))); }
DEVICE float log10_of(float x) { return float(wide_log_to_base_2(double(x)) * kLog10Of2); }
DEVICE WideAngle<double> angle_of(float x) {
  return __builtin_fabsf(x) < kLargeAngle ? wide_angle(double(x)) : wide_large_angle(x);
}
DEVICE float sin_of(float x) { return float(wide_sine(angle_of(x))); }
DEVICE float cos_of(float x) { return float(wide_sine(angle_of(x), 1)); }
DEVICE float floor_of(float x) { return __builtin_floorf(x); }
DEVICE float round_of(float x) { return __builtin_rintf(x); }
DEVICE float pow_of(float x, float y) { return float(wide_pow(double(x), double(y))); }
DEVICE float atan2_of(float y, float x) { return float(wide_atan2(double(y), double(x))); }
DEVICE float copysign_of(float size, float sign) { return __builtin_copysignf(size, sign); }
// Long division, 24 bits of the quotient at a time; all products are exact.
DEVICE float fmod_of(float x, float y) {
  double rest = absolute_of(x), divisor = absolute_of(y);
  if (!(rest < __builtin_inf()) || !(divisor > 0)) return __builtin_nanf("");
  if (rest < divisor) return x;
  double multiple = divisor;
  while (multiple * 16777216.0 <= rest) multiple *= 16777216.0;
  for (; multiple >= divisor; multiple *= 1.0 / 16777216.0) {
    rest -= __builtin_floor(rest / multiple) * multiple;
    if (rest < 0) rest += multiple;  // the quotient was rounded up to an integer
  }
  return __builtin_copysignf(float(rest), x);
}

}  // namespace reformer
#endif
