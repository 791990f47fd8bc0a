// Functions called by the generated text of a program (programs/stitch_source.h), in any kernel: where operands lie,
// what their rows and columns have, random numbers, and the program on adjacent elements.
#pragma once

#include "../device/functions.h"
#include "../device/warp.h"
#include "elements.h"

namespace reformer {
namespace {

template <int kCount>
DEVICE void fill(float value, float (&to)[kCount]) {
  UNROLL
  for (int i = 0; i < kCount; ++i) to[i] = value;
}
template <int kCount>
DEVICE void count_from(int first, float (&to)[kCount]) {
  UNROLL
  for (int i = 0; i < kCount; ++i) to[i] = float(first + i);
}
template <class T>
DEVICE float read_one(const void* from, long long at) {
  return to_float(static_cast<const T*>(from)[at]);
}
template <>
DEVICE float read_one<mask8>(const void* from, long long at) {
  return static_cast<const mask8*>(from)[at].value ? 1.0f : 0.0f;
}
template <class T>
DEVICE float rounded(float value) {
  T narrow;
  from_float(value, narrow);
  return to_float(narrow);
}

// The address of element (line, column) of a placement with so many digits. kColumns 0: equal for all columns.
template <int kLines, int kColumns>
DEVICE long long place(const StitchPlacement& of, int line, int column) {
  long long at = 0;
  UNROLL
  for (int i = 0; i + 1 < kLines; ++i) {
    int digit = line;
    line = divide_with_rest(digit, of.of_line[i]);
    at += static_cast<long long>(digit) * of.line[i];
  }
  at += static_cast<long long>(line) * of.line[kLines - 1];
  if constexpr (kColumns == 2) at += static_cast<long long>(divide_with_rest(column, of.of_column)) * of.column;
  return kColumns ? at + column : at;
}

// The address of an element of a transposed tensor, at the first of kPacked adjacent columns. kPacked 0: columns
// repeat.
template <int kLines, int kPacked>
DEVICE long long transposed_place(const StitchPlacement& of, int line, int column) {
  if constexpr (kPacked == 0) divide_with_rest(column, of.of_column);
  return place<kLines, 0>(of, line, column) + static_cast<long long>(column / (kPacked ? kPacked : 1)) * of.column;
}

// The number of a table's row, from its index. Traps if the table has no such row, as PyTorch's kernels do.
template <class Number>
DEVICE int look_up(const StitchTable& table, const void* index, long long at) {
  const Number row = static_cast<const Number*>(index)[at];
  if (static_cast<unsigned long long>(row) >= static_cast<unsigned long long>(table.rows)) trap();
  return int(row);
}

// Reads an input with one element per row (pixel), which is equal for all channels.
template <class T, int kCount, bool kChannelsAlong>
DEVICE void read_row(const StitchArgs& p, const void* from, int line, int column, float (&to)[kCount]) {
  if constexpr (kChannelsAlong) {
    const float one = read_one<T>(from, line);
    UNROLL
    for (int j = 0; j < kCount; ++j) to[j] = one;
  } else {
    const int image = divide(line, p.by_channels);
    UNROLL
    for (int j = 0; j < kCount; ++j) to[j] = read_one<T>(from, static_cast<long long>(image) * p.width + column + j);
  }
}

// Philox-4x32-7, which computes the random numbers of four positions; see csrc/cpu/programs/philox.h.
struct FourNumbers {
  unsigned c0, c1, c2, c3;
  DEVICE float uniform(int which) const {
    const unsigned number = which == 0 ? c0 : which == 1 ? c1 : which == 2 ? c2 : c3;
    return bits_to_float(shift_right(0x3f800000u >> 23, number, 9)) - 1.0f;
  }
};
DEVICE unsigned long long read_key(const void* at) { return *static_cast<const unsigned long long*>(at); }
DEVICE FourNumbers philox(unsigned long long key, unsigned long long group) {
  unsigned c0 = unsigned(group), c1 = unsigned(group >> 32), c2 = 0, c3 = 0;
  unsigned k0 = unsigned(key), k1 = unsigned(key >> 32);
  UNROLL
  for (int round = 0; round < 7; ++round) {
    const unsigned long long product0 = multiply_wide(c0, 0xD2511F53u), product1 = multiply_wide(c2, 0xCD9E8D57u);
    c0 = unsigned(product1 >> 32) ^ c1 ^ k0, c1 = unsigned(product1);
    c2 = unsigned(product0 >> 32) ^ c3 ^ k1, c3 = unsigned(product0);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// The counter of a random number is its element's index in channels_last order. If channels are adjacent, the index of
// the first one is a multiple of kCount, so one call of philox() computes up to four elements, and the counters of the
// calls differ only in their lowest bits.
template <int kCount, bool kChannelsAlong>
DEVICE void draw(const StitchArgs& p, unsigned long long key, int line, int column, float (&to)[kCount]) {
  if constexpr (kChannelsAlong) {
    constexpr int kStep = kCount < 4 ? kCount : 4;
    const unsigned long long place = static_cast<unsigned long long>(line) * p.width + column;
    UNROLL
    for (int j = 0; j < kCount; j += kStep) {
      const FourNumbers four = philox(key, place / 4 | unsigned(j / 4));
      UNROLL
      for (int i = 0; i < kStep; ++i) to[j + i] = four.uniform(kStep == 4 ? i : int(place % 4) + i);
    }
  } else {
    int channel = line;
    const int image = divide_with_rest(channel, p.by_channels);
    UNROLL
    for (int j = 0; j < kCount; ++j) {
      const unsigned long long place =
          (static_cast<unsigned long long>(image) * p.width + column + j) * p.channels + channel;
      to[j] = philox(key, place / 4).uniform(int(place % 4));
    }
  }
}

// Arrays must not be empty.
template <int kCount>
constexpr int kAtLeastOne = kCount ? kCount : 1;

// Runs a program on kCount adjacent elements of a line (vectorized), and holds the values that depend on their
// channels.
template <class Program, int kCount, bool kChannelsAlong>
struct VectorizedElements {
  static constexpr int kChannels = kChannelsAlong ? kCount : 1;
  float channel[kChannels][kAtLeastOne<Program::kChannelValues>];
  struct Loaded {
    float values[kAtLeastOne<Program::kLoaded>][kCount];
  };
  using Stored = float[kAtLeastOne<Program::kStored>][kCount];

  template <class There = AllOfGroup>
  DEVICE void begin(const StitchArgs& p, int first_channel, int image = 0, const There& there = {}) {
    float inputs[kAtLeastOne<Program::kChannelInputs>][kChannels];
    Program::channel_inputs(p, first_channel, image, inputs, there);
    UNROLL
    for (int j = 0; j < kChannels; ++j) Program::of_channel(p, inputs, j, channel[j]);
  }
  // Loads all inputs except acc.
  DEVICE void load(const StitchArgs& p, int line, int column, Loaded& loaded) const {
    Program::template load<kCount, kChannelsAlong>(p, line, column, loaded.values);
  }
  // Also loads acc, which is in memory.
  DEVICE void load_with_acc(const StitchArgs& p, int line, int column, Loaded& loaded) const {
    load(p, line, column, loaded);
    if constexpr (Program::kAcc >= 0)
      read<typename Program::Result, kCount, Program::kAccAccess>(
          p.acc, static_cast<long long>(line) * p.width + column, loaded.values[Program::kAcc]);
  }
  // Computes element j. row: values of its row for of_element(). reduced: the values that the reductions accumulate.
  // kNear: as in of_element().
  template <bool kNear = true>
  DEVICE void compute(const StitchArgs& p, const Loaded& loaded, int j, const float* row, Stored& stored,
                      float* reduced) const {
    float values[kAtLeastOne<Program::kLoaded>], results[kAtLeastOne<Program::kStored>];
    element(loaded, j, values);
    Program::template of_element<kNear>(p, channel[kChannelsAlong ? j : 0], values, row, results, reduced);
    UNROLL
    for (int i = 0; i < Program::kStored; ++i) stored[i][j] = results[i];
  }
  // The loaded values of element j.
  DEVICE static void element(const Loaded& loaded, int j, float (&to)[kAtLeastOne<Program::kLoaded>]) {
    UNROLL
    for (int i = 0; i < Program::kLoaded; ++i) to[i] = loaded.values[i][j];
  }
};

}  // namespace
}  // namespace reformer
