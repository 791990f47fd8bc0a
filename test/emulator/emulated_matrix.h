// The matrix instructions of both vendors, by a warp of the emulator. Included by the device's mma headers, whose words
// on who holds what are followed here: a mistake in them would be one here. (mma.sync was checked on a GPU.)
#pragma once

#include <cstdint>
#include <cstring>

#include "emulator.h"

namespace reformer {
namespace emulator {

// Element i of memory that holds elements of this type.
template <class T>
float element_at(const void* memory, int i) {
  T value;
  memcpy(&value, static_cast<const unsigned char*>(memory) + size_t(i) * sizeof(T), sizeof(T));
  if constexpr (sizeof(T) == 4) {
    float number;
    memcpy(&number, &value, 4);
    return number;
  } else {
    return to_float(value);
  }
}

struct LoadMatrices {
  const void* line;
  unsigned* to;
};
template <bool kTransposed>
void load_matrices(LoadMatrices* const* lanes) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t elements[8][8];
    for (int line = 0; line < 8; ++line) memcpy(elements[line], lanes[matrix * 8 + line]->line, 16);
    for (int lane = 0; lane < 32; ++lane) {
      const int major = lane / 4, minor = lane % 4 * 2;
      const unsigned low = kTransposed ? elements[minor][major] : elements[major][minor];
      const unsigned high = kTransposed ? elements[minor + 1][major] : elements[major][minor + 1];
      lanes[lane]->to[matrix] = high << 16 | low;
    }
  }
}
template <bool kTransposed>
void load_matrices(const void* line, unsigned (&to)[4], const Place& place) {
  if (reinterpret_cast<uintptr_t>(line) % 16) fail(place, "a line's address is not a multiple of 16");
  LoadMatrices call{line, to};
  collective<LoadMatrices, &load_matrices<kTransposed>>(place, call);
}

struct MultiplyAdd {
  const void *a, *b;
  float* c;
};

template <class T>
void multiply_add_16x8(MultiplyAdd* const* lanes) {
  constexpr int kPerWord = 4 / int(sizeof(T)), kDepth = 8 * kPerWord;
  float a[16][kDepth], b[8][kDepth];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int e = 0; e < 4 * kPerWord; ++e) {
      const int i = e / kPerWord, depth = (t + i / 2 * 4) * kPerWord + e % kPerWord;
      a[g + i % 2 * 8][depth] = element_at<T>(lanes[lane]->a, e);
    }
    for (int e = 0; e < 2 * kPerWord; ++e) {
      const int i = e / kPerWord, depth = (t + i * 4) * kPerWord + e % kPerWord;
      b[g][depth] = element_at<T>(lanes[lane]->b, e);
    }
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < kDepth; ++k) lanes[lane]->c[i] += a[row][k] * b[column][k];
    }
}
template <class T>
void multiply_add_16x8(float (&c)[4], const unsigned* a, const unsigned* b, const Place& place) {
  MultiplyAdd call{a, b, c};
  collective<MultiplyAdd, &multiply_add_16x8<T>>(place, call);
}

template <class T, int kSide, int kBytes>
void multiply_add_square(MultiplyAdd* const* lanes) {
  constexpr int kPerLane = kBytes / int(sizeof(T)), kDepth = 64 / kSide * kPerLane;
  float a[kSide][kDepth], b[kSide][kDepth];
  for (int lane = 0; lane < 64; ++lane)
    for (int e = 0; e < kPerLane; ++e) {
      const int k = lane / kSide * kPerLane + e;
      a[lane % kSide][k] = element_at<T>(lanes[lane]->a, e);
      b[lane % kSide][k] = element_at<T>(lanes[lane]->b, e);
    }
  for (int lane = 0; lane < 64; ++lane)
    for (int i = 0; i < kSide * kSide / 64; ++i) {
      const int row = kSide == 32 ? 8 * (i / 4) + 4 * (lane / 32) + i % 4 : 4 * (lane / 16) + i;
      for (int k = 0; k < kDepth; ++k) lanes[lane]->c[i] += a[row][k] * b[lane % kSide][k];
    }
}
template <class T, int kSide, class Operand, class Sums>
void multiply_add_square(const Operand& a, const Operand& b, Sums& c, const Place& place) {
  MultiplyAdd call{&a, &b, reinterpret_cast<float*>(&c)};
  collective<MultiplyAdd, &multiply_add_square<T, kSide, int(sizeof(Operand))>>(place, call);
}

}  // namespace emulator
}  // namespace reformer
