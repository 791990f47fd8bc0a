// Functions of fp32 numbers, computed in fp64, so that one rounding is left. For the including namespace; no include
// guard. D is a double (GPUs without a device library) or a vector of doubles (csrc/cpu/programs/functions.h).
//
// The including file defines the qualifiers WIDE, the type BitsOf<D> of D's bits, bits_of(D), number_of<D>(bits),
// absolute_of(D) and signed_as(D size, D sign). Conditions are masks if D is a vector: no branches, and == 0 for !.

template <class D>
WIDE D all_of(double number) {
  return number - D{};
}
template <int kFirst = 0, class D, int kCount>
WIDE D wide_polynomial(D x, const double (&of)[kCount]) {
  if constexpr (kFirst + 1 == kCount)
    return all_of<D>(of[kFirst]);
  else
    return wide_polynomial<kFirst + 1>(x, of) * x + of[kFirst];
}

// Adding kWideShift to a number below 2^51 rounds it to an integer, which is then in the low bits of the sum.
constexpr double kWideShift = 6755399441055744.0;

constexpr double kLog10Of2 = 3.01029995663981198e-01;

// 2^t; for |t| > 200 some number that no float can hold.
template <class D>
WIDE D wide_power_of_2(D t) {
  // (2^f - 1) / f for |f| <= 1/2, fitted to 2e-12 of 2^f.
  constexpr double kFit[] = {6.93147180556832443e-01, 2.40226506958885033e-01, 5.55041090632586651e-02,
                             9.61812913523613956e-03, 1.33334784736854157e-03, 1.54034751865307856e-04,
                             1.53037007113656932e-05, 1.32508055175022501e-06};
  const D most = all_of<D>(200.0), number = t == t ? t : all_of<D>(0.0);
  const D inside = number < -most ? -most : number > most ? most : number;
  const D shifted = inside + kWideShift, f = inside - (shifted - kWideShift);
  const auto n = bits_of(shifted) - bits_of(all_of<D>(kWideShift));
  const D power = number_of<D>((n + 1023) * (1ll << 52));
  return t == t ? (1.0 + f * wide_polynomial(f, kFit)) * power : t;
}

template <class D>
WIDE D wide_log_to_base_2(D x) {
  // log2((1 + s) / (1 - s)) / s in s^2 for (1 + s) / (1 - s) from sqrt(1/2) to sqrt(2), fitted to 2e-16.
  constexpr double kFit[] = {2.88539008177792722e+00, 9.61796693924334534e-01, 5.77078017246328567e-01,
                             4.12198402048275181e-01, 3.20616388132245467e-01, 2.61444249352291491e-01,
                             2.42916085398753506e-01};
  typedef typename BitsOf<D>::type Bits64;
  constexpr long long kRootOfHalf = 0x3fe6a09e667f3bcdll;
  const Bits64 bits = bits_of(x > 0 ? x : all_of<D>(1.0)) - kRootOfHalf, exponent = bits >> 52;
  const D m = number_of<D>(bits - exponent * (1ll << 52) + kRootOfHalf);
  const D n = number_of<D>(exponent + bits_of(all_of<D>(kWideShift))) - kWideShift;
  const D s = (m - 1.0) / (m + 1.0), infinity = all_of<D>(__builtin_inf());
  D log = n + s * wide_polynomial(D(s * s), kFit);
  log = x == 0 ? -infinity : log;
  log = x < 0 ? all_of<D>(__builtin_nan("")) : log;
  return ((x == infinity) | (x != x)) ? x : log;
}

template <class D>
WIDE D wide_expm1(D x) {
  const D near = x * (1.0 + x * (0.5 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120)))));
  const D far = wide_power_of_2(D(x * 1.44269504088896339)) - 1.0;
  return absolute_of(x) < 0.015625 ? near : far;
}

// A condition; true for infinity.
template <class D>
WIDE auto wide_is_whole(D x) {
  return (absolute_of(x) >= 16777216.0) | ((x + kWideShift) - kWideShift == x);
}
// x^y as IEEE 754's pow: a negative number has powers with whole exponents only.
template <class D>
WIDE D wide_pow(D x, D y) {
  const D size = absolute_of(x), one = all_of<D>(1.0), half = y * 0.5;
  const auto y_is_whole = wide_is_whole(y), half_is_whole = wide_is_whole(half);
  D power = wide_power_of_2(D(y * wide_log_to_base_2(size)));
  power = ((size == 1) & (y == y)) ? one : power;  // where y is infinite
  power = ((x < 0) & (size < __builtin_inf()) & (y_is_whole == 0) & (y == y)) ? all_of<D>(__builtin_nan("")) : power;
  power = ((bits_of(x) < 0) & y_is_whole & (half_is_whole == 0)) ? -power : power;
  return ((y == 0) | (x == 1)) ? one : power;
}

// An angle less a multiple of pi / 2, and in two bits the number of quarter turns that were taken away.
template <class D>
struct WideAngle {
  D rest;
  typename BitsOf<D>::type quarters;
};
constexpr double kLargeAngle = 1048576.0;
// Angles below kLargeAngle: the products with the first part of pi / 2, of 33 bits, are exact.
template <class D>
WIDE WideAngle<D> wide_angle(D x) {
  constexpr double kFirst = 1.57079632673412561417, kSecond = 6.07710050650619224932e-11;
  const D shifted = x * 0.636619772367581382 + kWideShift, n = shifted - kWideShift;
  return {(x - n * kFirst) - n * kSecond, bits_of(shifted)};
}
// Angles from kLargeAngle on, after Payne and Hanek: |x| = m 2^e times those 96 bits of 2 / pi that matter modulo 4.
WIDE WideAngle<double> wide_large_angle(float x) {
  constexpr unsigned kBits[] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  typedef unsigned long long Word;
  const double size = __builtin_fabs(double(x));
  if (!(size < __builtin_inf())) return {__builtin_nan(""), 0};
  const Word bits = Word(bits_of(size));
  const int first = int(bits >> 52) - 1023 - 23 + 30;  // e - 2, counted from the leading zero word
  const Word m = (bits >> 29 & 0x7fffff) | 0x800000;
  const unsigned* const from = kBits + first / 32;
  const int by = first % 32;
  const auto word = [&](int i) { return ((Word(from[i]) << 32 | from[i + 1]) << by) >> 32; };
  const Word product = m * (word(0) << 32 | word(1)) + (m * word(2) >> 32);
  const Word quarters = (product + (Word(1) << 61)) >> 62;
  const double rest = double(static_cast<long long>(product - (quarters << 62))) * 3.40612158008655459e-19;
  return x < 0 ? WideAngle<double>{-rest, -static_cast<long long>(quarters)}
               : WideAngle<double>{rest, static_cast<long long>(quarters)};
}
// The sine; the cosine is that of one more quarter.
template <class D>
WIDE D wide_sine(const WideAngle<D>& of, int quarters = 0) {
  // (sin(r) / r - 1) / r^2 and (cos(r) - 1) / r^2 in r^2 for |r| <= pi / 4, fitted to 2e-11 and 3e-13.
  constexpr double kSine[] = {-1.66666666638530442e-01, 8.33333187383708887e-03, -1.98400862637554431e-04,
                              2.72498646551395851e-06};
  constexpr double kCosine[] = {-4.99999999999638567e-01, 4.16666666373726943e-02, -1.38888850891262516e-03,
                                2.47998615025061206e-05, -2.72370767313250968e-07};
  const D r = of.rest, square = r * r;
  const D sine = r * (1.0 + square * wide_polynomial(square, kSine));  // -0 stays -0
  const D cosine = 1.0 + square * wide_polynomial(square, kCosine);
  const auto turns = of.quarters + quarters;
  const D value = (turns & 1) != 0 ? cosine : sine;
  return (turns & 2) != 0 ? -value : value;
}

template <class D>
WIDE D wide_atan2(D y, D x) {
  // (atan(u) / u - 1) / u^2 in u^2 for |u| <= tan(pi / 8), fitted to 2e-12.
  constexpr double kFit[] = {-3.33333333314394964e-01, 1.99999989166905617e-01,  -1.42856124652752520e-01,
                             1.11074938534327025e-01,  -9.02896756211041818e-02, 7.13523464746404074e-02,
                             -4.04303369614710667e-02};
  constexpr double kPi = 3.14159265358979324;
  const D a = absolute_of(y), b = absolute_of(x), larger = a > b ? a : b, lesser = a > b ? b : a;
  D t = larger == lesser ? all_of<D>(1.0) : lesser / larger;
  t = larger == 0 ? larger : t;
  const auto is_far = t > 0.41421356237309505;
  const D u = is_far ? (t - 1.0) / (t + 1.0) : t, square = u * u;
  D angle = u + u * (square * wide_polynomial(square, kFit));
  angle = is_far ? angle + kPi / 4 : angle;
  angle = a > b ? kPi / 2 - angle : angle;
  angle = bits_of(x) < 0 ? kPi - angle : angle;
  return ((x != x) | (y != y)) ? x + y : signed_as(angle, y);
}
