// Adjacent elements of a tensor: their types, those that exist, in registers as they are stored, and how they are read
// and written.
#pragma once

#include "../device/async_copy.h"
#include "../device/types.h"
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

}  // namespace
}  // namespace reformer
