// Functions called by the generated text of a program (programs/stitch_source.h), in any kernel: they read, compute and
// write adjacent elements.
#pragma once

#include "../device/async_copy.h"
#include "../device/functions.h"
#include "../device/types.h"
#include "../device/warp.h"
#include "stitch_args.h"

namespace reformer {

// A whole number that is read as one of its digits (program/digits.h).
template <class T, int kShift, int kMask>
struct digit_of {
  T number;
  DEVICE explicit digit_of(T of) : number(of) {}
};
template <class T, int kShift, int kMask>
DEVICE float to_float(digit_of<T, kShift, kMask> x) {
  return float(int(static_cast<long long>(x.number) >> kShift) & kMask);
}

namespace {

struct mask8 {
  unsigned char value;
};

// The existing elements of a group of adjacent ones: all, or those before the row's end.
struct AllOfGroup {
  static constexpr bool kIsAll = true;
  DEVICE bool has(int) const { return true; }
  DEVICE int at(int i) const { return i; }
};
struct BeginOfGroup {
  static constexpr bool kIsAll = false;
  int count;
  DEVICE bool has(int i) const { return i < count; }
  // Element i, or the last existing one if i does not exist.
  DEVICE int at(int i) const { return i < count ? i : count - 1; }
};
// Calls visit() with an object that tells which of the kCount elements from this column on exist. kTails: rows may end
// within a group.
template <int kCount, bool kTails, class Visit>
DEVICE void visit_group(const StitchArgs& p, int column, Visit visit) {
  if constexpr (kTails)
    if (p.width - column < kCount) return visit(BeginOfGroup{p.width - column});
  visit(AllOfGroup{});
}

template <int kA, int kB>
constexpr int kLess = kA < kB ? kA : kB;
// Elements per access for kCount adjacent ones: at most kMost, and 16 bytes.
template <class T, int kCount, int kMost>
constexpr int kOfAccess = kLess<kLess<kCount, kMost>, 16 / int(sizeof(T))>;

// Copies kCount adjacent elements to shared memory asynchronously; they have arrived after async_wait().
template <class T, int kCount, int kMost = kCount>
DEVICE void fetch(void* to, long long to_at, const void* from, long long at, AllOfGroup = {}) {
  constexpr int kStep = kOfAccess<T, kCount, kMost>, kBytes = kStep * int(sizeof(T));
  UNROLL
  for (int i = 0; i < kCount; i += kStep) {
    T* const there = static_cast<T*>(to) + to_at + i;
    const T* const here = static_cast<const T*>(from) + at + i;
    if constexpr (kBytes >= 4) {
      async_copy<kBytes>(there, here, true);
    } else {
      UNROLL
      for (int j = 0; j < kStep; ++j) there[j] = here[j];
    }
  }
}
template <class T, int kCount, int kMost = kCount>
DEVICE void fetch(void* to, long long to_at, const void* from, long long at, const BeginOfGroup& there) {
  for (int i = 0; i < there.count; ++i) fetch<T, 1>(to, to_at + i, from, at + i);
}

// kCount adjacent elements in registers, in their stored type, read by accesses of at most kMost elements.
template <class T, int kCount, int kMost = kCount>
struct Held {
  static constexpr int kStep = kOfAccess<T, kCount, kMost>;
  Pack<T, kStep> packs[kCount / kStep];

  DEVICE void read(const void* from, long long at, AllOfGroup = {}) {
    UNROLL
    for (int i = 0; i < kCount; i += kStep) packs[i / kStep] = load<T, kStep>(static_cast<const T*>(from) + at + i);
  }
  DEVICE void read(const void* from, long long at, const BeginOfGroup& there) {
    constexpr int kInWord = kStep * int(sizeof(T)) < 4 ? 1 : 4 / int(sizeof(T));
    UNROLL
    for (int i = 0; i < kCount; i += kInWord) {
      unsigned word = 0;
      UNROLL
      for (int j = 0; j < kInWord; ++j)
        word |= bits_of(static_cast<const T*>(from)[at + there.at(i + j)]) << 8 * j * int(sizeof(T));
      set_word(packs[i / kStep], i % kStep / kInWord, word);
    }
  }
  DEVICE void fill(float value) {
    T one;
    from_float(value, one);
    UNROLL
    for (auto& each : packs) {
      constexpr int kBytes = int(sizeof(T));
      UNROLL
      for (int i = 0; i < (kStep * kBytes + 3) / 4; ++i)
        set_word(each, i, kBytes == 4 || kStep == 1 ? bits_of(one) : bits_of(one) * 0x10001u);
    }
  }
  DEVICE void widen(float (&to)[kCount]) const {
    UNROLL
    for (int i = 0; i < kCount; i += kStep) {
      float some[kStep];
      reformer::widen<T, kStep>(packs[i / kStep], some);
      UNROLL
      for (int j = 0; j < kStep; ++j) to[i + j] = some[j];
    }
  }
  DEVICE float element(int i) const {
    const int within = i % kStep;
    return reformer::element<T>(word(packs[i / kStep], within * int(sizeof(T)) / 4), within);
  }
  DEVICE void forget() {
    UNROLL
    for (auto& each : packs) forget_words(each);
  }
};
// Truth values are bytes.
template <int kCount, int kMost>
struct Held<mask8, kCount, kMost> {
  static constexpr int kStep = kLess<kCount, kMost>;
  Words<(kCount > 1 ? kCount : 2)> bytes;

  DEVICE void read(const void* from, long long at, AllOfGroup = {}) {
    const unsigned char* const first = static_cast<const unsigned char*>(from) + at;
    if constexpr (kStep == kCount && kCount > 1)
      bytes = *reinterpret_cast<const Words<kCount>*>(first);
    else
      gather(first, [](int i) { return i; });
  }
  DEVICE void read(const void* from, long long at, const BeginOfGroup& there) {
    gather(static_cast<const unsigned char*>(from) + at, [&](int i) { return there.at(i); });
  }
  template <class Place>
  DEVICE void gather(const unsigned char* first, Place place) {
    UNROLL
    for (int i = 0; i < kCount; i += 4) {
      unsigned four = 0;
      UNROLL
      for (int j = 0; j < 4 && i + j < kCount; ++j) four |= unsigned(first[place(i + j)]) << 8 * j;
      set_word(bytes, i / 4, four);
    }
  }
  DEVICE void fill(float value) {
    UNROLL
    for (int i = 0; i < kCount; i += 4) set_word(bytes, i / 4, value != 0 ? 0x01010101u : 0u);
  }
  DEVICE void widen(float (&to)[kCount]) const {
    UNROLL
    for (int i = 0; i < kCount; ++i) to[i] = element(i);
  }
  DEVICE float element(int i) const { return word(bytes, i / 4) >> 8 * (i % 4) & 0xff ? 1.0f : 0.0f; }
  DEVICE void forget() { forget_words(bytes); }
};

// Whole numbers are widened at once: as they are, they would take more registers.
template <class T, int kCount, int kMost>
struct HeldWhole {
  static constexpr int kStep = kOfAccess<T, kCount, kMost>;
  float values[kCount];

  DEVICE void read(const void* from, long long at, AllOfGroup = {}) {
    UNROLL
    for (int i = 0; i < kCount; i += kStep) {
      const auto pack = load<T, kStep>(static_cast<const T*>(from) + at + i);
      UNROLL
      for (int j = 0; j < kStep; ++j) values[i + j] = to_float(whole_of<T>(pack, j));
    }
  }
  DEVICE void read(const void* from, long long at, const BeginOfGroup& there) {
    UNROLL
    for (int i = 0; i < kCount; ++i) values[i] = to_float(static_cast<const T*>(from)[at + there.at(i)]);
  }
  DEVICE void fill(float value) {
    UNROLL
    for (float& each : values) each = value;
  }
  DEVICE void widen(float (&to)[kCount]) const {
    UNROLL
    for (int i = 0; i < kCount; ++i) to[i] = values[i];
  }
  DEVICE float element(int i) const { return values[i]; }
  DEVICE void forget() {}
};
template <int kCount, int kMost>
struct Held<whole64, kCount, kMost> : HeldWhole<whole64, kCount, kMost> {};
template <int kCount, int kMost>
struct Held<whole32, kCount, kMost> : HeldWhole<whole32, kCount, kMost> {};
template <class T, int kShift, int kMask, int kCount, int kMost>
struct Held<digit_of<T, kShift, kMask>, kCount, kMost> : HeldWhole<digit_of<T, kShift, kMask>, kCount, kMost> {};

// Read and write kCount adjacent elements; the values are fp32 in registers. kMost: elements per access.
template <class T, int kCount, int kMost = kCount, class There = AllOfGroup>
DEVICE void read(const void* from, long long at, float (&to)[kCount], const There& there = {}) {
  Held<T, kCount, kMost> held;
  held.read(from, at, there);
  held.widen(to);
}
template <class T, int kCount>
DEVICE void write(void* to, long long at, const float (&from)[kCount], AllOfGroup = {}) {
  constexpr int kMost = 16 / int(sizeof(T)), kStep = kCount < kMost ? kCount : kMost;
  T* const first = static_cast<T*>(to) + at;
  UNROLL
  for (int i = 0; i < kCount; i += kStep) {
    float some[kStep];
    UNROLL
    for (int j = 0; j < kStep; ++j) some[j] = from[i + j];
    store<T, kStep>(first + i, narrow<T, kStep>(some));
  }
}
template <class T, int kCount>
DEVICE void write(void* to, long long at, const float (&from)[kCount], const BeginOfGroup& there) {
  UNROLL
  for (int i = 0; i < kCount; ++i)
    if (there.has(i)) from_float(from[i], static_cast<T*>(to)[at + i]);
}
template <int kCount>
DEVICE void write_mask(void* to, long long at, const float (&from)[kCount], AllOfGroup = {}) {
  unsigned char* const first = static_cast<unsigned char*>(to) + at;
  if constexpr (kCount == 1) {
    *first = from[0] != 0;
  } else {
    Words<kCount> bytes;
    UNROLL
    for (int i = 0; i < kCount; i += 4) {
      unsigned four = 0;
      UNROLL
      for (int j = 0; j < 4 && i + j < kCount; ++j) {
        const float each = from[i + j];
        if (each != 0) four |= 1u << 8 * j;
      }
      set_word(bytes, i / 4, four);
    }
    *reinterpret_cast<Words<kCount>*>(first) = bytes;
  }
}
template <int kCount>
DEVICE void write_mask(void* to, long long at, const float (&from)[kCount], const BeginOfGroup& there) {
  UNROLL
  for (int i = 0; i < kCount; ++i)
    if (there.has(i)) static_cast<unsigned char*>(to)[at + i] = from[i] != 0;
}
// kCount adjacent elements in registers to be written, which are set one after another.
template <class T, int kCount>
struct Narrowed {
  static constexpr int kMost = 16 / int(sizeof(T)), kStep = kCount < kMost ? kCount : kMost;
  Pack<T, kStep> packs[kCount / kStep];

  template <int kSome>
  DEVICE void put(int first, const float (&some)[kSome]) {
    const Pack<T, kSome> narrowed = narrow<T, kSome>(some);
    UNROLL
    for (int i = 0; i < (kSome * int(sizeof(T)) + 3) / 4; ++i)
      set_word(packs[first / kStep], first % kStep * int(sizeof(T)) / 4 + i, word(narrowed, i));
  }
  DEVICE void write(void* to, long long at) const {
    UNROLL
    for (int i = 0; i < kCount; i += kStep) store<T, kStep>(static_cast<T*>(to) + at + i, packs[i / kStep]);
  }
};
// Elements that are narrowed when they are written.
template <class T, int kCount>
struct NotNarrowed {
  float values[kCount];

  template <int kSome>
  DEVICE void put(int first, const float (&some)[kSome]) {
    UNROLL
    for (int i = 0; i < kSome; ++i) values[first + i] = some[i];
  }
  DEVICE void write(void* to, long long at) const {
    if constexpr (is_whole<T>)
      reformer::write<T, kCount>(to, at, values);
    else
      write_mask<kCount>(to, at, values);
  }
};
template <int kCount>
struct Narrowed<mask8, kCount> : NotNarrowed<mask8, kCount> {};
template <int kCount>
struct Narrowed<whole64, kCount> : NotNarrowed<whole64, kCount> {};
template <int kCount>
struct Narrowed<whole32, kCount> : NotNarrowed<whole32, kCount> {};
// Elements of kCount columns of a tensor whose lines are adjacent: kLines lines of kPacked columns each, which are read
// by accesses of at most kMost elements.
template <class T, int kLines, int kCount, int kPacked, int kMost>
struct HeldLines {
  Held<T, kLines * kPacked, kLess<kLines * kPacked, kMost>> groups[kCount / kPacked];

  DEVICE void widen(int line, float (&to)[kCount]) const {
    UNROLL
    for (int j = 0; j < kCount; ++j) to[j] = groups[j / kPacked].element(line * kPacked + j % kPacked);
  }
};
// Such elements to be written, which are set for one or two lines at a time.
template <class T, int kLines, int kCount, int kPacked>
struct NarrowedLines {
  Narrowed<T, kLines * kPacked> groups[kCount / kPacked];

  // i: number of the output.
  template <int kSome, int kSize>
  DEVICE void put(int i, int line, const float (&from)[kSome][kSize][kCount]) {
    constexpr int kAtOnce = kPacked == 1 ? kSome : 1;
    UNROLL
    for (int j = 0; j < kCount; j += kPacked) {
      UNROLL
      for (int k = 0; k < kSome; k += kAtOnce) {
        float some[kAtOnce * kPacked];
        UNROLL
        for (int n = 0; n < kAtOnce * kPacked; ++n) some[n] = from[k + n / kPacked][i][j + n % kPacked];
        groups[j / kPacked].put((line + k) * kPacked, some);
      }
    }
  }
};
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
