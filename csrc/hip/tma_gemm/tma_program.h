// The epilogue of tma_tiles.h, applied to sums before they are stored: none, or a program (docs/programs.md).
#pragma once

#include "../device/tma.h"
#include "../programs/column_reductions.h"

namespace reformer {
namespace {

struct NoProgram {
  template <int kSums>
  struct Thread {
    DEVICE explicit Thread(const NoProgram&) {}
    DEVICE void begin(int) {}
    DEVICE void run(float (&)[kSums][4], int, int, int) const {}
    DEVICE void reduce(const unsigned char*, int, int) {}
    DEVICE void end(unsigned char*, int, int, int) const {}
  };
};

// A thread's partial results of a program's reduction over channels: for two of every 64 columns, over the rows whose
// results its warp stores. It reads the rounded results from the box that is about to be stored, so that no shuffles
// are needed.
template <class Program, int kColumns, bool kThere = (Program::kReductions > 0)>
class TileReduction {
  static_assert(Program::kReductions == 1 && Program::over(0) == Over::images && Program::first_number(0) == 0);
  static constexpr Kind kKind = Program::kind(0);
  static constexpr int kRows = 16;  // per warp
  Accumulator<kKind> mine_[kColumns / 64][2];

 public:
  // from: a box of 64 x 64 results; rows: number of its rows that exist.
  DEVICE void add(const unsigned char* from, int box, int rows) {
    using T = typename Program::Result;
    const int lane = lane_id(), first = warp_id() % 4 * kRows;
    float values[2][kRows];
    UNROLL
    for (int i = 0; i < kRows; ++i) {
      const unsigned char* const chunk = from + (first + i) * 128 + (lane / 4 ^ i % 8) * 16;
      float two[2];
      widen<T, 2>(load<T, 2>(reinterpret_cast<const T*>(chunk) + lane % 4 * 2), two);
      values[0][i] = two[0], values[1][i] = two[1];
    }
    UNROLL
    for (int e = 0; e < 2; ++e) mine_[box][e].add(values[e], rows - first);
  }

  // Combines the partial results of a group's four warps, in the group's shared memory, and stores this part.
  DEVICE void end(float* shared, const StitchArgs& p, int group, int part, int column) const {
    constexpr int kPitch = 4 * kColumns;
    tma::group_barrier(1 + group, 128);  // the memory has been read
    UNROLL
    for (int box = 0; box < kColumns / 64; ++box) {
      UNROLL
      for (int e = 0; e < 2; ++e)
        store_known(known(mine_[box][e]), shared + warp_id() % 4 * kColumns + box * 64 + lane_id() * 2 + e, kPitch);
    }
    tma::group_barrier(1 + group, 128);
    for (int at = thread_id() % 128; at < kColumns && column + at < p.width; at += 128) {
      Known<kKind> all;
      for (int warp = 0; warp < 4; ++warp) {
        Known<kKind> other;
        load_known(other, shared + warp * kColumns + at, kPitch);
        all.add(other);
      }
      store_part<Program, 0>(all, p, part, column + at);
    }
  }
};
template <class Program, int kColumns>
class TileReduction<Program, kColumns, false> {
 public:
  DEVICE void add(const unsigned char*, int, int) {}
  DEVICE void end(float*, const StitchArgs&, int, int, int) const {}
};

template <class Program>
struct RunsProgram {
  static_assert(!Program::kStoresChannels);
  const StitchArgs& p;

  // A thread's part in running the program. Its tiles have 8 * kSums columns, which are always the same columns of the
  // result.
  template <int kSums>
  class Thread {
   public:
    DEVICE explicit Thread(const RunsProgram& program) : p(program.p) {}

    // column: the tiles' first one. Values of channels are computed once if there are registers to cache them.
    DEVICE void begin(int column) {
      if constexpr (kCachesChannels) {
        UNROLL
        for (int i = 0; i < kSums; ++i) of_channels(column + lane_id() % 4 * 2 + i * 8, channel_values_[i]);
      }
    }

    // Runs the program on 64 columns from `column` on of the warp's rows from `row` on. sums: the tile's accumulator,
    // in mma's pairs. The result replaces the sums; the program's other outputs are written here.
    DEVICE void run(float (&sums)[kSums][4], int first, int row, int column) const {
      // The loop over groups of 8 columns is unrolled, so that as many loads are in flight as registers allow.
      constexpr bool kMany = Program::kLoaded > 2 || (!kCachesChannels && Program::kChannelValues > 2);
      constexpr int kUnroll = Program::kLoaded > 1 ? (kMany ? 2 : 4) / (kSums > 16 ? 2 : 1) : kMany ? 4 : 8;
      UNROLL
      for (int i = 0; i < 8; i += kUnroll) some<kUnroll>(sums, first + i, row, column + i * 8);
    }

    // Reduces a box of results, whose first row is `row`.
    DEVICE void reduce(const unsigned char* box, int number, int row) { reduction.add(box, number, p.lines - row); }

    // To be called after the last tile: writes the reduction's partial result number `part`. shared: the group's
    // memory, 2 * kTmaStoreBytes.
    DEVICE void end(unsigned char* shared, int group, int part, int column) const {
      reduction.end(reinterpret_cast<float*>(shared), p, group, part, column);
    }

   private:
    static constexpr int kValues = kAtLeastOne<Program::kChannelValues>;
    static constexpr int kRegisters = (2 * Program::kChannelValues + 4) * kSums;  // including the sums
    static constexpr int kFree = (Program::kLoaded > 1 ? 112 : 160) - (Program::kReductions > 0 ? 72 : 0);
    static constexpr bool kCachesChannels = Program::kChannelValues && kRegisters <= kFree;

    // Columns past the end are computed from the tensors of the last ones, and not written.
    DEVICE void of_channels(int column, float (&to)[2][kValues]) const {
      float inputs[kAtLeastOne<Program::kChannelInputs>][2];
      Program::channel_inputs(p, least(column, p.width - 2), 0, inputs);
      UNROLL
      for (int e = 0; e < 2; ++e) Program::of_channel(p, inputs, e, to[e]);
    }

    // Rows past the end are computed from the tensors of the last row, and not written.
    template <int kUnroll>
    DEVICE void some(float (&sums)[kSums][4], int first, int row, int column) const {
      if (column >= p.width) return;
      const int lane = lane_id();
      row += lane / 4, column += lane % 4 * 2;
      float channels[kUnroll][2][kValues], x[kUnroll][2][kAtLeastOne<Program::kLoaded>][2];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        if constexpr (!kCachesChannels) of_channels(column + i * 8, channels[i]);
        UNROLL
        for (int half = 0; half < 2; ++half)
          Program::template load<2, true>(p, least(row + half * 8, p.lines - 1), least(column + i * 8, p.width - 2),
                                          x[i][half]);
      }
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        float stored[2][Program::kStored][2];
        UNROLL
        for (int e = 0; e < 2; ++e) {
          const float* const channel =
              kCachesChannels ? channel_values_[kCachesChannels ? first + i : 0][e] : channels[i][e];
          UNROLL
          for (int half = 0; half < 2; ++half) {
            float& sum = sums[first + i][half * 2 + e];
            float values[kAtLeastOne<Program::kLoaded>], results[Program::kStored], reduced[1];
            UNROLL
            for (int k = 0; k < Program::kLoaded; ++k) values[k] = k == Program::kAcc ? sum : x[i][half][k][e];
            Program::of_element(p, channel, values, nullptr, results, reduced);  // the result itself is reduced
            UNROLL
            for (int k = 0; k < Program::kStored; ++k) stored[half][k][e] = results[k];
            sum = results[Program::kResult];
          }
        }
        if constexpr (Program::kStored > 1) {
          UNROLL
          for (int half = 0; half < 2; ++half)
            if (row + half * 8 < p.lines && column + i * 8 < p.width)
              Program::template store<false, 2>(p, static_cast<long long>(row + half * 8) * p.width + column + i * 8,
                                                stored[half]);
        }
      }
    }

    DEVICE static int least(int a, int b) { return a < b ? a : b; }

    const StitchArgs& p;
    float channel_values_[kCachesChannels ? kSums : 1][2][kValues];
    TileReduction<Program, kSums * 8> reduction;
  };
};

}  // namespace
}  // namespace reformer
