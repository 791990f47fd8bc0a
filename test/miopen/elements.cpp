#include "elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "calls.h"
#include "codes.h"

namespace stub {
namespace {

// A 16-bit number: a sign, an exponent, and a fraction of kBits.
template <int kBits>
struct Small {
  static constexpr int kExponents = 1 << (15 - kBits);
  static constexpr int kLeast = 2 - kExponents / 2;  // exponent of the smallest normal number
  static constexpr uint16_t kInfinity = (kExponents - 1) << kBits;

  static double decoded(uint16_t bits) {
    const int exponent = (bits & 0x7fff) >> kBits, fraction = bits & ((1 << kBits) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == kExponents - 1) return fraction ? std::nan("") : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(fraction, kLeast - kBits);
    return sign * std::ldexp(fraction + (1 << kBits), kLeast - kBits + exponent - 1);
  }

  static uint16_t encoded(double value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return sign | kInfinity | 1 << (kBits - 1);
    const double size = std::fabs(value);
    if (size == 0) return sign;
    if (std::isinf(size) || std::ilogb(size) > -kLeast + 1) return sign | kInfinity;
    const int exponent = std::max(std::ilogb(size), kLeast);
    // A fraction that is rounded up to the next power of two carries into the exponent.
    const auto fraction = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, kBits - exponent)));
    const uint32_t bits = (static_cast<uint32_t>(exponent - kLeast) << kBits) + fraction;
    return sign | static_cast<uint16_t>(std::min<uint32_t>(bits, kInfinity));
  }
};
using Half = Small<10>;
using BFloat16 = Small<7>;

template <class T>
T read(const void* data, int64_t at) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + at * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void write(void* data, int64_t at, T value) {
  std::memcpy(static_cast<char*>(data) + at * sizeof(T), &value, sizeof(T));
}

}  // namespace

double load(int type, const void* data, int64_t at) {
  switch (type) {
    case kHalf: return Half::decoded(read<uint16_t>(data, at));
    case kBFloat16: return BFloat16::decoded(read<uint16_t>(data, at));
    case kFloat: return read<float>(data, at);
    case kDouble: return read<double>(data, at);
    default: misuse("a convolution of integers");
  }
}

void store(int type, void* data, int64_t at, double value) {
  switch (type) {
    case kHalf: return write(data, at, Half::encoded(value));
    case kBFloat16: return write(data, at, BFloat16::encoded(value));
    case kFloat: return write(data, at, static_cast<float>(value));
    case kDouble: return write(data, at, value);
    default: misuse("a convolution of integers");
  }
}

}  // namespace stub
