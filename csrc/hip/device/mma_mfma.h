// WarpTile by AMD's MFMA. Included by mma.h.
//
// Fragments, from AMD's "CDNA3 Instruction Set Architecture", section 7.1 (the same in CDNA 1 and 2), for results of
// S x S, S = 32 or 16, of one block:
//   A: lane l has row l % S, and the part l / S of the depth; B: column l % S, and the same part
//   C: lane l has column l % S, and in register i, row 8 (i / 4) + 4 (l / 32) + i % 4 for S = 32, 4 (l / 16) + i for 16
// A step here is 32 bytes of depth, of which each lane has a piece of S / 2 contiguous bytes. An instruction may take
// less; then several follow each other, each with the next elements of every lane. A and B agree, so this changes only
// the order of the sum.
#pragma once

#if defined(REFORMER_EMULATOR)
#include "emulated_matrix.h"
#endif

// gfx908's bf16 instructions take pairs; later ones ("_1k") take four elements, as fp16's do.
#if defined(__gfx908__)
#define REFORMER_MFMA_BF16_PAIRS 1
#endif

namespace reformer {
namespace mfma {

template <int kSide>
struct SumsOf;
template <>
struct SumsOf<32> {
  typedef float type __attribute__((vector_size(64)));
};
template <>
struct SumsOf<16> {
  typedef float type __attribute__((vector_size(16)));
};
template <int kSide>
using Sums = typename SumsOf<kSide>::type;

// Bytes of an operand per lane and instruction.
template <class T>
constexpr int kOperandBytes = 8;
template <>
constexpr int kOperandBytes<fp32> = 4;
#if defined(REFORMER_MFMA_BF16_PAIRS)
template <>
constexpr int kOperandBytes<bf16> = 4;
#endif

#if defined(REFORMER_EMULATOR)
template <class T, int kSide>
DEVICE Sums<kSide> multiply_add(const Words<kOperandBytes<T>>& a, const Words<kOperandBytes<T>>& b, Sums<kSide> c) {
  emulator::multiply_add_square<T, kSide>(a, b, c, emulator::Place{"multiply", __FILE__, __LINE__});
  return c;
}
#else
template <class T, int kSide>
DEVICE Sums<kSide> multiply_add(const Words<kOperandBytes<T>>& a, const Words<kOperandBytes<T>>& b, Sums<kSide> c);
#define REFORMER_MULTIPLY_ADD(T, kSide, Operand, instruction)                                                         \
  template <>                                                                                                         \
  DEVICE Sums<kSide> multiply_add<T, kSide>(const Words<kOperandBytes<T>>& a, const Words<kOperandBytes<T>>& b,       \
                                            Sums<kSide> c) {                                                          \
    return __builtin_amdgcn_mfma_f32_##instruction(__builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), c, \
                                                   0, 0, 0);                                                          \
  }
typedef _Float16 Halves4 __attribute__((ext_vector_type(4)));
typedef short Shorts4 __attribute__((ext_vector_type(4)));
typedef short Shorts2 __attribute__((ext_vector_type(2)));
REFORMER_MULTIPLY_ADD(fp16, 32, Halves4, 32x32x8f16)
REFORMER_MULTIPLY_ADD(fp16, 16, Halves4, 16x16x16f16)
#if defined(REFORMER_MFMA_BF16_PAIRS)
REFORMER_MULTIPLY_ADD(bf16, 32, Shorts2, 32x32x4bf16)
REFORMER_MULTIPLY_ADD(bf16, 16, Shorts2, 16x16x8bf16)
#else
REFORMER_MULTIPLY_ADD(bf16, 32, Shorts4, 32x32x8bf16_1k)
REFORMER_MULTIPLY_ADD(bf16, 16, Shorts4, 16x16x16bf16_1k)
#endif
REFORMER_MULTIPLY_ADD(fp32, 32, float, 32x32x2f32)
REFORMER_MULTIPLY_ADD(fp32, 16, float, 16x16x4f32)
#undef REFORMER_MULTIPLY_ADD
#endif

// Operand i of those in a lane's piece.
template <int kBytes, class Piece>
DEVICE Words<kBytes> operand(const Piece& piece, int i) {
  Words<kBytes> words{};
  UNROLL
  for (int w = 0; w < kBytes / 4; ++w) set_word(words, w, word(piece, i * (kBytes / 4) + w));
  return words;
}

// A lane's piece of a fragment of kSide outer indices (from `outer` on) by 32 bytes of depth (from k on).
template <int kSide, class Tile>
DEVICE Words<kSide / 2> load_piece(const Tile& tile, int outer, int k) {
  using T = typename Tile::Element;
  using Piece = Words<kSide / 2>;
  constexpr int kPerWord = 4 / int(sizeof(T));
  outer += lane_id() % kSide;
  k += lane_id() / kSide * (kSide / 2 / int(sizeof(T)));
  if constexpr (Tile::kAlongDepth) return *reinterpret_cast<const Piece*>(tile.at(outer, k));
  Piece piece{};  // across the lines: element by element
  UNROLL
  for (int w = 0; w < kSide / 8; ++w) {
    if constexpr (kPerWord == 1)
      set_word(piece, w, float_to_bits(*tile.at(outer, k + w)));
    else
      set_word(piece, w,
               static_cast<unsigned>(tile.at(outer, k + 2 * w + 1)->bits) << 16 | tile.at(outer, k + 2 * w)->bits);
  }
  return piece;
}

}  // namespace mfma

template <class T, int kRows, int kColumns>
class WarpTile {
  static_assert(kRows % 16 == 0 && kColumns % 16 == 0);
  static constexpr int kSide = kRows % 32 == 0 && kColumns % 32 == 0 ? 32 : 16;
  using Sums = mfma::Sums<kSide>;
  using Piece = Words<kSide / 2>;
  Sums sums_[kRows / kSide][kColumns / kSide];

 public:
  static constexpr int kDepth = 32 / int(sizeof(T));

  struct A {
    Piece pieces[kRows / kSide];
  };
  struct B {
    Piece pieces[kColumns / kSide];
  };

  DEVICE void clear() {
    UNROLL
    for (int i = 0; i < kRows / kSide; ++i) {
      UNROLL
      for (int j = 0; j < kColumns / kSide; ++j) sums_[i][j] = Sums{};
    }
  }

  template <class Tile>
  DEVICE static A load_a(const Tile& tile, int row, int k) {
    A a;
    UNROLL
    for (int i = 0; i < kRows / kSide; ++i) a.pieces[i] = mfma::load_piece<kSide>(tile, row + i * kSide, k);
    return a;
  }

  template <class Tile>
  DEVICE static B load_b(const Tile& tile, int column, int k) {
    B b;
    UNROLL
    for (int j = 0; j < kColumns / kSide; ++j) b.pieces[j] = mfma::load_piece<kSide>(tile, column + j * kSide, k);
    return b;
  }

  DEVICE void multiply(const A& a, const B& b) {
    constexpr int kBytes = mfma::kOperandBytes<T>;
    UNROLL
    for (int part = 0; part < int(sizeof(Piece)) / kBytes; ++part) {
      UNROLL
      for (int i = 0; i < kRows / kSide; ++i) {
        UNROLL
        for (int j = 0; j < kColumns / kSide; ++j)
          sums_[i][j] = mfma::multiply_add<T, kSide>(mfma::operand<kBytes>(a.pieces[i], part),
                                                     mfma::operand<kBytes>(b.pieces[j], part), sums_[i][j]);
      }
    }
  }

  template <class Function>
  DEVICE void for_each(Function function) const {
    const int column = lane_id() % kSide, row = lane_id() / kSide * 4;
    UNROLL
    for (int i = 0; i < kRows / kSide; ++i) {
      UNROLL
      for (int j = 0; j < kColumns / kSide; ++j) {
        UNROLL
        for (int e = 0; e < kSide * kSide / 64; ++e)
          function(i * kSide + e / 4 * 8 + row + e % 4, j * kSide + column, sums_[i][j][e]);
      }
    }
  }

  // Stores to memory, shared or not. pitch: floats from one row to the next, an even number; the address is a multiple
  // of 8 bytes.
  DEVICE void store(float* to, int pitch) const {
    for_each([&](int row, int column, float sum) { to[row * pitch + column] = sum; });
  }
};

}  // namespace reformer
