// Partial results of a program's reductions, and how kernels store and combine them.
#pragma once

#include "program.h"

namespace reformer {
namespace {

enum class Kind { sum, max, moments, prod };
// The elements that are reduced to one: those of a channel in all images, or in one image (if rows are reduced: at one
// height of all images), or everything.
enum class Over { images, image, all };

// The reduction of no values; with moments, of their sum.
DEVICE float nothing(Kind kind) {
  return kind == Kind::max ? bits_to_float(0xff800000u) : kind == Kind::prod ? 1.0f : 0.0f;
}
// The reduction of two partial results, which are no moments.
DEVICE float joined(Kind kind, float a, float b) {
  return kind == Kind::max ? larger_of(a, b) : kind == Kind::prod ? a * b : a + b;
}

// The partial result of a reduction over some of its values. For moments: the number of values, their mean, and the sum
// of squared differences from the mean.
template <Kind kKind>
struct Known {
  float value = nothing(kKind);
  DEVICE void add(float x) { value = joined(kKind, value, x); }
  DEVICE void add(const Known& other) { add(other.value); }
};
template <>
struct Known<Kind::moments> {
  float count = 0, value = 0, squares = 0;
  // Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm, 1979.
  DEVICE void add(const Known& other) {
    const float all = count + other.count, share = all > 0 ? other.count / all : 0.0f;
    const float difference = other.count > 0 ? other.value - value : 0.0f;  // an infinite mean is kept
    value += difference * share;
    squares += other.squares + difference * difference * (count * share);
    count = all;
  }
};

constexpr int kNumbers = 3;  // greatest number of floats in a Known

template <Kind kKind>
DEVICE void store_known(const Known<kKind>& known, float* to, long long) {
  *to = known.value;
}
DEVICE void store_known(const Known<Kind::moments>& known, float* to, long long pitch) {
  to[0] = known.count, to[pitch] = known.value, to[2 * pitch] = known.squares;
}
template <Kind kKind>
DEVICE void load_known(Known<kKind>& known, const float* from, long long) {
  known.value = *from;
}
DEVICE void load_known(Known<Kind::moments>& known, const float* from, long long pitch) {
  known.count = from[0], known.value = from[pitch], known.squares = from[2 * pitch];
}

// Stores a part of a program's reduction i for a channel (of an image, if the reduction is per image) or, if the
// reduction is over everything, part number `part`. A result of one part is complete.
template <class Program, int i>
DEVICE void store_part(const Known<Program::kind(i)>& known, const StitchArgs& p, int part, int channel) {
  constexpr Over kOver = Program::over(i);
  const long long at = kOver == Over::all ? part : static_cast<long long>(part) * p.channels + channel;
  const long long all = static_cast<long long>(p.parts) * p.channels;
  const int parts = kOver == Over::all ? p.block_parts : kOver == Over::image ? p.image_parts : p.parts;
  if (parts == 1) return Program::template store_reduction<i>(p, int(at), kOver == Over::all ? 1 : int(all), known);
  store_known(known, p.partial + Program::first_number(i) * all + at, all);
}

}  // namespace
}  // namespace reformer
