// Tensors that are read through maps of their axes (program/axis_maps.h), and rows that are stored to targets
// (program/targets.h).
#pragma once

#include "program.h"

namespace reformer {
namespace {

// The place of a tap of an axis' map (program/axis_maps.h), negative if there is none, and its weight.
struct Tap {
  int place;
  float weight;

  // The first place of the axis in place of none. Unsigned, which is widened by zeros: sources have fewer than 2^31
  // elements.
  DEVICE unsigned place_or_first() const { return place < 0 ? 0u : unsigned(place); }
};
// Adjacent taps of an axis' map, read by as wide accesses as their number allows: tables begin at multiples of 16
// bytes.
template <int kTaps, bool kWeights>
struct Taps {
  static constexpr int kNumbers = kWeights ? 2 * kTaps : kTaps;
  static constexpr int kStep = kNumbers % 4 == 0 ? 4 : kNumbers % 2 == 0 ? 2 : 1;
  Pack<fp32, kStep> packs[kNumbers / kStep];

  // position: of the first tap's numbers.
  DEVICE Taps(const void* map, long long position) {
    UNROLL
    for (int i = 0; i < kNumbers; i += kStep)
      packs[i / kStep] = load<fp32, kStep>(static_cast<const fp32*>(map) + position + i);
  }
  DEVICE Tap at(int i) const {
    if constexpr (kWeights) return {int(number(2 * i)), bits_to_float(number(2 * i + 1))};
    return {int(number(i)), 1.0f};
  }

 private:
  DEVICE unsigned number(int i) const { return word(packs[i / kStep], i % kStep); }
};
// Calls store(place, is_row) for each target of a line (program/targets.h), whose numbers begin at this position.
template <int kTargets, class Store>
DEVICE void each_target(const void* targets, long long position, const Store& store) {
  int numbers[kTargets];
  UNROLL
  for (int i = 0; i < kTargets; ++i) numbers[i] = static_cast<const int*>(targets)[position + i];
  UNROLL
  for (int i = 0; i < kTargets; ++i)
    if (const int target = numbers[i]; target != -1) store(target < 0 ? -2 - target : target, target >= 0);
}
// Sums of a mapped tensor's elements, as Held is for elements. An element that is not there is read all the same, and
// changes nothing. That is a choice between numbers, not a condition around a statement, for which the compiler would
// move the load behind the condition: then each load would wait for the sum of the one before it.
template <int kCount>
struct Summed {
  float values[kCount];

  DEVICE void fill(float value) { reformer::fill(value, values); }
  template <class T, int kMost, class There>
  DEVICE void add(bool is_there, float weight, const void* from, long long at, const There& there) {
    float some[kCount];
    read_wide<T, kMost>(from, at, there, some);
    UNROLL
    for (int i = 0; i < kCount; ++i) values[i] = is_there ? multiply_add(weight, some[i], values[i]) : values[i];
  }
  DEVICE void take(const float (&from)[kCount]) {
    UNROLL
    for (int i = 0; i < kCount; ++i) values[i] = from[i];
  }
  template <class T>
  DEVICE void add_one(bool is_there, float weight, int i, const void* from, long long at) {
    const float one = read_one<T>(from, at);
    values[i] = is_there ? multiply_add(weight, one, values[i]) : values[i];
  }
  template <class T, int kStep>
  DEVICE void put(bool is_there, int first, const void* from, long long at) {
    float some[kStep];
    read_wide<T, kStep>(from, at, AllOfGroup{}, some);
    UNROLL
    for (int i = 0; i < kStep; ++i) values[first + i] = is_there ? some[i] : values[first + i];
  }
  // Sets the elements of each group of columns to these elements of such groups, and leaves the others.
  template <class T, int kMost, int... kPlaces, class There>
  DEVICE void put_within(bool is_there, const void* from, long long at, const There& there) {
    constexpr int kGroup = sizeof...(kPlaces), kPlace[kGroup] = {kPlaces...};
    float some[kCount];
    read_wide<T, kMost>(from, at, there, some);
    UNROLL
    for (int i = 0; i < kCount; ++i)
      if (kPlace[i % kGroup] < kGroup) values[i] = is_there ? some[i - i % kGroup + kPlace[i % kGroup]] : values[i];
  }
  DEVICE void widen(float (&to)[kCount]) const {
    UNROLL
    for (int i = 0; i < kCount; ++i) to[i] = values[i];
  }
  DEVICE void forget() {}

 private:
  template <class T, int kMost, int kSize, class There>
  DEVICE static void read_wide(const void* from, long long at, const There& there, float (&to)[kSize]) {
    Held<T, kSize, kMost> held;
    held.read(from, at, there);
    held.widen(to);
  }
};

}  // namespace
}  // namespace reformer
