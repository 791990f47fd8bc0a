// WarpTile by NVIDIA's mma.sync and ldmatrix. Included by mma.h.
//
// Fragments, from the PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "... mma.m16n8k8", with
// g = lane / 4 and t = lane % 4, registers of 32 bits:
//   A, 16 x 16 (tf32: 16 x 8): register i has row g + i % 2 * 8, and word t + i / 2 * 4 of the depth
//   B, 16 x 8 (tf32: 8 x 8):   register i has column g, and word t + i * 4 of the depth
//   C, 16 x 8:                 register i has row g + i / 2 * 8, column 2 t + i % 2
// where a word is two adjacent 16-bit elements or one of 32 bits. ldmatrix loads matrices of 8 lines of 16 bytes in the
// same distribution: lane l gets word l % 4 of line l / 4 or, transposed (16-bit elements only), lines 2 (l % 4) and
// 2 (l % 4) + 1 of column l / 4. Lanes 8 i to 8 i + 7 provide the addresses of the lines of matrix i.
#pragma once

#if defined(REFORMER_EMULATOR)
#include "emulated_matrix.h"
#endif

namespace reformer {
namespace mma_sync {

template <bool kTransposed>
DEVICE void load_matrices(const void* line, unsigned (&to)[4]) {
#if defined(REFORMER_EMULATOR)
  emulator::load_matrices<kTransposed>(line, to, emulator::Place{"load_a or load_b", __FILE__, __LINE__});
#else
  const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(line));
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
#endif
}

// Rounds to nearest, ties away from zero.
DEVICE unsigned round_to_tf32(unsigned bits) {
#if defined(REFORMER_EMULATOR)
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & ~0x1fffu;
#else
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(bits_to_float(bits)));
  return rounded;
#endif
}

#if defined(REFORMER_EMULATOR)
template <class T>
DEVICE void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned* b) {
  emulator::multiply_add_16x8<T>(c, a, b, emulator::Place{"multiply", __FILE__, __LINE__});
}
#else
template <class T>
DEVICE void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned* b);
#define REFORMER_MULTIPLY_ADD(T, shape, type)                                             \
  template <>                                                                             \
  DEVICE void multiply_add<T>(float (&c)[4], const unsigned (&a)[4], const unsigned* b) { \
    asm("mma.sync.aligned." shape ".row.col.f32." type "." type                           \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"            \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                  \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));              \
  }
REFORMER_MULTIPLY_ADD(fp16, "m16n8k16", "f16")
REFORMER_MULTIPLY_ADD(bf16, "m16n8k16", "bf16")
REFORMER_MULTIPLY_ADD(tf32, "m16n8k8", "tf32")
#undef REFORMER_MULTIPLY_ADD
#endif

// Loads kCount times four registers of 16 outer indices (from `outer` on, a multiple of 8) by 32 bytes of depth (from k
// on). The two bits of i select register i's half of the outer indices and of the depth: for A the low bit selects the
// outer half, for B the depth's, so that registers 0, 1 and 2, 3 are two fragments.
template <bool kLowBitIsOuter, int kCount, class Tile>
DEVICE void load_fragments(const Tile& tile, int outer, int k, unsigned (&to)[kCount][4]) {
  using T = typename Tile::Element;
  constexpr int kHalfDepth = 16 / int(sizeof(T));
  const int matrix = lane_id() / 8, line = lane_id() % 8;
  const int outer_half = kLowBitIsOuter ? matrix & 1 : matrix >> 1;
  const int depth_half = kLowBitIsOuter ? matrix >> 1 : matrix & 1;
  if constexpr (Tile::kAlongDepth) {
    // Lines with the same permutation, so that one address serves all.
    const void* const first = tile.at(outer + outer_half * 8 + line, k + depth_half * kHalfDepth);
    UNROLL
    for (int j = 0; j < kCount; ++j)
      load_matrices<false>(static_cast<const unsigned char*>(first) + j * 16 * Tile::kLineBytes, to[j]);
  } else {
    UNROLL
    for (int j = 0; j < kCount; ++j) {
      if constexpr (sizeof(T) == 2) {
        load_matrices<true>(tile.at(outer + j * 16 + outer_half * 8, k + depth_half * kHalfDepth + line), to[j]);
      } else {  // ldmatrix can't transpose 32-bit words
        const int g = lane_id() / 4, t = lane_id() % 4;
        UNROLL
        for (int i = 0; i < 4; ++i) {
          const int half = kLowBitIsOuter ? i & 1 : i >> 1, part = kLowBitIsOuter ? i >> 1 : i & 1;
          to[j][i] = float_to_bits(tile.at(outer + j * 16 + half * 8 + g, k + part * kHalfDepth + t)->value);
        }
      }
    }
  }
  if constexpr (sizeof(T) == 4) {
    UNROLL
    for (int j = 0; j < kCount; ++j) {
      UNROLL
      for (int i = 0; i < 4; ++i) to[j][i] = round_to_tf32(to[j][i]);
    }
  }
}

// Visits sums by rows, kElements (4 or 8) adjacent columns at once, of kRows x kColumns sums in fragments of 16 x 8.
// Four lanes hold the pairs of a row; they exchange them, so that each gets kElements columns of one of the fragments.
// of_columns(column) is called first, with the lane's first column. It returns an object that processes the rows,
// kUnroll at a time: first load(row), then store(row, what was loaded, sums). All lanes make the same number of calls.
// Pieces at or beyond `columns` are skipped.
template <int kElements, int kRows, int kColumns, class OfColumns>
DEVICE void for_each_piece(const float (&sums)[kRows / 16][kColumns / 8][4], int columns, OfColumns of_columns) {
  using Taker = decltype(of_columns(0));
  constexpr int kLanes = kElements / 2;  // lanes that exchange sums; also the number of fragments
  constexpr int kBeside = kLanes == 4 && kColumns % 32 == 0 ? 4 : 2;  // adjacent fragments along a row
  constexpr int kHalves = kLanes / kBeside;     // halves of the fragments (8 rows each) per exchange
  constexpr int kPieces = kRows / 8 / kHalves;  // pieces of its columns per lane
  constexpr int kUnroll = Taker::kUnroll < kPieces ? Taker::kUnroll : kPieces;
  const int lane = lane_id() % 4, fragment = lane % kLanes;
  UNROLL
  for (int j = 0; j < kColumns / 8; j += kBeside) {
    if (j * 8 >= columns) break;
    const Taker taker = of_columns((j + fragment % kBeside) * 8 + lane / kLanes * kElements);
    const auto row_of = [&](int piece) { return (piece * kHalves + fragment / kBeside) * 8 + lane_id() / 4; };
    UNROLL
    for (int first = 0; first < kPieces; first += kUnroll) {
      typename Taker::Loaded loaded[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) loaded[i] = taker.load(row_of(first + i));
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int half = (first + i) * kHalves;
        float values[kElements];  // first a pair of each fragment, then a fragment's pairs from each lane
        UNROLL
        for (int f = 0; f < kElements; ++f)
          values[f] = sums[half / 2][j + f / 2 % kBeside][(half % 2 + f / 2 / kBeside) * 2 + f % 2];
        UNROLL
        for (int mask = 1; mask < kLanes; mask *= 2) {
          UNROLL
          for (int f = 0; f < kElements; ++f) {
            if (f / 2 & mask) continue;
            float &low = values[f], &high = values[f + mask * 2];
            const bool keeps_high = lane & mask;
            const float other = shuffle_xor(keeps_high ? low : high, mask);
            low = keeps_high ? other : low;
            high = keeps_high ? high : other;
          }
        }
        taker.store(row_of(first + i), loaded[i], values);
      }
    }
  }
}

}  // namespace mma_sync

template <class T, int kRows, int kColumns>
class WarpTile {
  static_assert(kRows % 16 == 0 && kColumns % 16 == 0);
  float sums_[kRows / 16][kColumns / 8][4];

 public:
  static constexpr int kDepth = 32 / int(sizeof(T));

  struct A {
    unsigned words[kRows / 16][4];
  };
  struct B {
    unsigned words[kColumns / 16][4];
  };

  DEVICE void clear() {
    UNROLL
    for (int i = 0; i < kRows / 16; ++i) {
      UNROLL
      for (int j = 0; j < kColumns / 8; ++j) {
        UNROLL
        for (int e = 0; e < 4; ++e) sums_[i][j][e] = 0;
      }
    }
  }

  template <class Tile>
  DEVICE static A load_a(const Tile& tile, int row, int k) {
    A a;
    mma_sync::load_fragments<true>(tile, row, k, a.words);
    return a;
  }

  template <class Tile>
  DEVICE static B load_b(const Tile& tile, int column, int k) {
    B b;
    mma_sync::load_fragments<false>(tile, column, k, b.words);
    return b;
  }

  DEVICE void multiply(const A& a, const B& b) {
    UNROLL
    for (int i = 0; i < kRows / 16; ++i) {
      UNROLL
      for (int j = 0; j < kColumns / 8; ++j)
        mma_sync::multiply_add<T>(sums_[i][j], a.words[i], b.words[j / 2] + j % 2 * 2);
    }
  }

  template <class Function>
  DEVICE void for_each(Function function) const {
    const int row = lane_id() / 4, column = lane_id() % 4 * 2;
    UNROLL
    for (int i = 0; i < kRows / 16; ++i) {
      UNROLL
      for (int j = 0; j < kColumns / 8; ++j) {
        UNROLL
        for (int e = 0; e < 4; ++e) function(i * 16 + e / 2 * 8 + row, j * 8 + column + e % 2, sums_[i][j][e]);
      }
    }
  }

  // Visits kElements adjacent columns of a row at once; see mma_sync::for_each_piece.
  template <int kElements, class OfColumns>
  DEVICE void for_each_piece(int columns, OfColumns of_columns) const {
    mma_sync::for_each_piece<kElements, kRows, kColumns>(sums_, columns, of_columns);
  }

  // Stores to memory, shared or not. pitch: floats from one row to the next, an even number; the address is a multiple
  // of 8 bytes.
  DEVICE void store(float* to, int pitch) const {
    to += lane_id() / 4 * pitch + lane_id() % 4 * 2;
    UNROLL
    for (int i = 0; i < kRows / 16; ++i) {
      UNROLL
      for (int j = 0; j < kColumns / 8; ++j) {
        UNROLL
        for (int e = 0; e < 4; e += 2) {
          const float pair[2] = {sums_[i][j][e], sums_[i][j][e + 1]};
          reformer::store<fp32, 2>(to + (i * 16 + e * 4) * pitch + j * 8, narrow<fp32, 2>(pair));
        }
      }
    }
  }
};

}  // namespace reformer
