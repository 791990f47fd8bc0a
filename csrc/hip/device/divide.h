// Division by a number known before the kernel starts, as a multiplication and a shift. Source: Granlund and
// Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994, section 4. Dividends are below 2^31, so
// that the magic number needs no 33rd bit.
#pragma once

#ifdef DEVICE
#define REFORMER_BOTH DEVICE
#else
#define REFORMER_BOTH inline
#endif

namespace reformer {

struct Divider {
  unsigned divisor, magic, shift;
};

// On the host; 1 <= divisor < 2^31.
constexpr Divider make_divider(int divisor) {
  unsigned shift = 0;
  while ((1u << shift) < unsigned(divisor)) ++shift;
  // ceil(2^(31 + shift) / divisor) < 2^32, as divisor > 2^(shift - 1)
  const unsigned long long power = 1ull << (31 + shift);
  return {unsigned(divisor), unsigned((power + unsigned(divisor) - 1) / unsigned(divisor)), shift};
}

#ifdef DEVICE
// Requires 0 <= x < 2^31.
DEVICE int divide(int x, const Divider& by) { return int(multiply_high(unsigned(x) << 1, by.magic) >> by.shift); }

// Returns x / by and sets x to the remainder.
DEVICE int divide_with_rest(int& x, const Divider& by) {
  const int quotient = divide(x, by);
  x -= quotient * int(by.divisor);
  return quotient;
}
#endif

}  // namespace reformer
