// The three digits of a whole number of 64 bits in base 2^24, each of which fp32 has: the lowest two are unsigned, the
// third has the number's sign. A leaf of a program reads digit 1 (the lowest), 2 or 3, or, as digit 0, the number.
#pragma once

#include <cstdint>

namespace reformer {

constexpr int kDigits = 3, kDigitBits = 24;

// A digit is (number >> shift) & mask.
struct Digit {
  int shift;
  int32_t mask;

  explicit Digit(int number) : shift(kDigitBits * (number - 1)), mask(number == kDigits ? -1 : (1 << kDigitBits) - 1) {}
};

}  // namespace reformer
