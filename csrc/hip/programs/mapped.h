// Tensors that are read through maps of their axes (program/axis_maps.h), and rows that are stored to targets
// (program/targets.h).
#pragma once

#include "program.h"

namespace reformer {
namespace {

// The place of tap i of a position of an axis' map (program/axis_maps.h), negative if there is none, and its weight.
struct Tap {
  int place;
  float weight;
};
template <bool kWeights>
DEVICE Tap tap(const void* map, long long position, int i) {
  const int* const numbers = static_cast<const int*>(map) + position;
  if constexpr (kWeights) return {numbers[2 * i], bits_to_float(unsigned(numbers[2 * i + 1]))};
  return {numbers[i], 1.0f};
}
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
// changes nothing.
template <int kCount>
struct Summed {
  float values[kCount];

  DEVICE void fill(float value) { reformer::fill(value, values); }
  template <class T, int kMost, class There>
  DEVICE void add(bool is_there, float weight, const void* from, long long at, const There& there) {
    float some[kCount];
    read_wide<T, kMost>(from, at, there, some);
    UNROLL
    for (int i = 0; i < kCount; ++i)
      if (is_there) values[i] += weight * some[i];
  }
  template <class T>
  DEVICE void add_one(bool is_there, float weight, int i, const void* from, long long at) {
    const float one = read_one<T>(from, at);
    if (is_there) values[i] += weight * one;
  }
  template <class T, int kStep>
  DEVICE void put(bool is_there, int first, const void* from, long long at) {
    float some[kStep];
    read_wide<T, kStep>(from, at, AllOfGroup{}, some);
    UNROLL
    for (int i = 0; i < kStep; ++i)
      if (is_there) values[first + i] = some[i];
  }
  // Sets the elements of each group of columns to these elements of such groups, and leaves the others.
  template <class T, int kMost, int... kPlaces, class There>
  DEVICE void put_within(bool is_there, const void* from, long long at, const There& there) {
    constexpr int kGroup = sizeof...(kPlaces), kPlace[kGroup] = {kPlaces...};
    float some[kCount];
    read_wide<T, kMost>(from, at, there, some);
    UNROLL
    for (int i = 0; i < kCount; ++i)
      if (kPlace[i % kGroup] < kGroup && is_there) values[i] = some[i - i % kGroup + kPlace[i % kGroup]];
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
