// Functions of vectors of floats that are computed in fp64 (hip/device/wide_functions.h), those of doubles, lane by
// lane by the C library, and roundings. For an ISA body, after functions.h; no include guard.

namespace reformer::REFORMER_ISA {

typedef int64_t Bits64 __attribute__((vector_size(REFORMER_VECTOR_BYTES)));
typedef float HalfVector __attribute__((vector_size(REFORMER_VECTOR_BYTES / 2)));

template <class D>
struct BitsOf {
  typedef Bits64 type;
};
template <>
struct BitsOf<double> {
  typedef int64_t type;
};
REFORMER_INLINE Bits64 bits_of(Vec<double> x) { return (Bits64)x; }
REFORMER_INLINE int64_t bits_of(double x) {
  int64_t bits;
  std::memcpy(&bits, &x, sizeof x);
  return bits;
}
template <class D>
REFORMER_INLINE D number_of(typename BitsOf<D>::type bits) {
  return (D)bits;
}
REFORMER_INLINE Vec<double> absolute_of(Vec<double> x) {
  return (Vec<double>)((Bits64)x & std::numeric_limits<int64_t>::max());
}
REFORMER_INLINE Vec<double> signed_as(Vec<double> size, Vec<double> sign) {
  constexpr int64_t kSign = std::numeric_limits<int64_t>::min();
  return (Vec<double>)(((Bits64)size & ~kSign) | ((Bits64)sign & kSign));
}

#define WIDE REFORMER_INLINE
#include "hip/device/wide_functions.h"
#undef WIDE

// The two halves of a vector of floats, as doubles, and such halves as a vector of floats.
struct Halves {
  Vec<double> low, high;
};
template <int... kLane>
REFORMER_INLINE Halves halves_of(Vec<float> x, std::integer_sequence<int, kLane...>) {
  const HalfVector low = __builtin_shufflevector(x, x, kLane...);
  const HalfVector high = __builtin_shufflevector(x, x, (kLane + kLanes<double>)...);
  return {__builtin_convertvector(low, Vec<double>), __builtin_convertvector(high, Vec<double>)};
}
REFORMER_INLINE Halves halves_of(Vec<float> x) {
  return halves_of(x, std::make_integer_sequence<int, kLanes<double>>{});
}
template <int... kLane>
REFORMER_INLINE Vec<float> joined(HalfVector low, HalfVector high, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(low, high, kLane...);
}
REFORMER_INLINE Vec<float> joined(Vec<double> low, Vec<double> high) {
  return joined(__builtin_convertvector(low, HalfVector), __builtin_convertvector(high, HalfVector),
                std::make_integer_sequence<int, kLanes<float>>{});
}

REFORMER_INLINE bool all_true(Bits64 mask) {
  int64_t all = -1;
  for (int i = 0; i < kLanes<double>; ++i) all &= mask[i];
  return all != 0;
}

REFORMER_INLINE WideAngle<Vec<double>> angle_of(Vec<double> x) {
  WideAngle<Vec<double>> angle = wide_angle(x);
  const Bits64 is_small = absolute_of(x) < kLargeAngle;
  if (!all_true(is_small))
    for (int i = 0; i < kLanes<double>; ++i)
      if (is_small[i] == 0) {
        const WideAngle<double> large = wide_large_angle(float(x[i]));
        angle.rest[i] = large.rest, angle.quarters[i] = large.quarters;
      }
  return angle;
}
REFORMER_INLINE Vec<float> sine(Vec<float> x, int quarters) {
  const Halves of = halves_of(x);
  return joined(wide_sine(angle_of(of.low), quarters), wide_sine(angle_of(of.high), quarters));
}

template <class Function>
REFORMER_INLINE Vec<double> by_lane(Vec<double> x, Vec<double> y, Function function) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = function(x[i], y[i]);
  return x;
}
REFORMER_INLINE Vec<double> sine(Vec<double> x, int quarters) {
  return by_lane(x, [&](double v) { return quarters ? std::cos(v) : std::sin(v); });
}
REFORMER_INLINE Vec<float> exponential_less_1(Vec<float> x) {
  const Halves of = halves_of(x);
  return joined(wide_expm1(of.low), wide_expm1(of.high));
}
REFORMER_INLINE Vec<double> exponential_less_1(Vec<double> x) {
  return by_lane(x, [](double v) { return std::expm1(v); });
}
REFORMER_INLINE Vec<float> log_to_base_2(Vec<float> x) {
  const Halves of = halves_of(x);
  return joined(wide_log_to_base_2(of.low), wide_log_to_base_2(of.high));
}
REFORMER_INLINE Vec<double> log_to_base_2(Vec<double> x) {
  return by_lane(x, [](double v) { return std::log2(v); });
}
REFORMER_INLINE Vec<float> log_to_base_10(Vec<float> x) {
  const Halves of = halves_of(x);
  return joined(wide_log_to_base_2(of.low) * kLog10Of2, wide_log_to_base_2(of.high) * kLog10Of2);
}
REFORMER_INLINE Vec<double> log_to_base_10(Vec<double> x) {
  return by_lane(x, [](double v) { return std::log10(v); });
}
REFORMER_INLINE Vec<float> power(Vec<float> x, Vec<float> y) {
  const Halves a = halves_of(x), b = halves_of(y);
  return joined(wide_pow(a.low, b.low), wide_pow(a.high, b.high));
}
REFORMER_INLINE Vec<double> power(Vec<double> x, Vec<double> y) {
  return by_lane(x, y, [](double v, double w) { return std::pow(v, w); });
}
REFORMER_INLINE Vec<float> angle_of_point(Vec<float> y, Vec<float> x) {
  const Halves a = halves_of(y), b = halves_of(x);
  return joined(wide_atan2(a.low, b.low), wide_atan2(a.high, b.high));
}
REFORMER_INLINE Vec<double> angle_of_point(Vec<double> y, Vec<double> x) {
  return by_lane(y, x, [](double v, double w) { return std::atan2(v, w); });
}
// The rest of a division truncated to an integer, which is exact.
REFORMER_INLINE Vec<double> rest_of_division(Vec<double> x, Vec<double> y) {
  return by_lane(x, y, [](double v, double w) { return std::fmod(v, w); });
}
// For quotients below 2^24 and a finite divisor, by one step; the product is exact.
REFORMER_INLINE Vec<double> rest_of_small_division(Vec<double> x, Vec<double> y) {
  const Vec<double> size = absolute_of(x), divisor = absolute_of(y), quotient = size / divisor;
  if (!all_true((quotient < 16777216.0) & (divisor < __builtin_inf()))) return rest_of_division(x, y);
  const Vec<double> nearest = (quotient + kWideShift) - kWideShift, rest = size - nearest * divisor;
  return signed_as(rest < 0 ? rest + divisor : rest, x);
}
REFORMER_INLINE Vec<float> rest_of_division(Vec<float> x, Vec<float> y) {
  const Halves a = halves_of(x), b = halves_of(y);
  return joined(rest_of_small_division(a.low, b.low), rest_of_small_division(a.high, b.high));
}

REFORMER_INLINE Vec<float> signed_as(Vec<float> size, Vec<float> sign) { return with_sign_of(magnitude(size), sign); }
// To the nearest integer, to an even one from halfway, by an addition that rounds; larger numbers are integers.
template <class S>
REFORMER_INLINE Vec<S> nearest_integer(Vec<S> x) {
  constexpr S kInteger = std::is_same_v<S, float> ? S(8388608.0) : S(4503599627370496.0);
  const Vec<S> size = magnitude(x), nearest = (size + kInteger) - kInteger;
  return size < broadcast(kInteger) ? signed_as(nearest, x) : x;
}
template <class S>
REFORMER_INLINE Vec<S> integer_below(Vec<S> x) {
  const Vec<S> nearest = nearest_integer<S>(x);
  return nearest > x ? nearest - S(1) : nearest;
}

}  // namespace reformer::REFORMER_ISA
