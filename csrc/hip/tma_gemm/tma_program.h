// The epilogue of tma_tiles.h, applied to sums before they are stored: none, or a program (docs/programs.md).
#pragma once

#include "../device/mma.h"
#include "../device/tma.h"
#include "../programs/column_reductions.h"
#include "tma_gemm.h"

namespace reformer {
namespace {

// The place in a box of 64 x 64 elements, for store_matrices() and load_matrices(): this lane's address of 2 x 8
// columns of its warp's 16 rows, from the group of 8 columns of this even number on. Two of the four 8 x 8 matrices
// have the first 8 rows, two the next. The lane's part of the address does not depend on the number.
template <bool kTransposed>
DEVICE int place_in_box(int number) {
  const int lane = lane_id(), first_row = warp_id() % 4 * 16;
  const int line = kTransposed ? lane / 16 * 8 + lane % 8 : first_row + lane % 16;
  const int chunk = kTransposed ? first_row / 8 + lane / 8 % 2 : lane / 16;
  const int of_lane = line * 128 + (chunk ^ line % 8) * 16;
  return kTransposed ? of_lane + number % 8 * 1024 : of_lane ^ number % 8 * 16;
}

struct NoProgram {
  static constexpr bool kRounds = true;  // sums are rounded, or stored as they are for another kernel
  static constexpr TmaEpilogue kEpilogue{};
  DEVICE void prefetch() const {}
  DEVICE void load(unsigned, unsigned, int, int) const {}
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

// The lowest bits that are set.
DEVICE constexpr unsigned long long lowest_bits(unsigned long long bits, int count) {
  unsigned long long lowest = 0;
  for (; count && bits; --count, bits &= bits - 1) lowest |= bits & -bits;
  return lowest;
}
DEVICE constexpr int count_bits(unsigned long long bits) {
  int count = 0;
  for (; bits; bits &= bits - 1) ++count;
  return count;
}

template <class Program>
struct RunsProgram {
  static_assert(!Program::kStoresChannels);
  // The tensors that the copy engine loads and stores; threads access the other ones themselves.
  static constexpr unsigned long long kLoaded = lowest_bits(Program::kDenseLoaded, kTmaMostLoaded);
  static constexpr unsigned long long kStored = lowest_bits(Program::kDenseStored, kTmaMostStored);
  static_assert(kStored >> Program::kResult & 1);
  static constexpr bool kRounds = false;
  static constexpr TmaEpilogue kEpilogue{count_bits(kLoaded), count_bits(kStored), Program::kChannelValues};

  const StitchArgs& p;
  const TensorMap* tensors;  // loaded ones, then stored ones

  DEVICE void prefetch() const {
    for (int i = 0; i < kEpilogue.loaded + kEpilogue.stored; ++i) tma::prefetch(tensors[i]);
  }
  // Starts the copies of a box of each tensor.
  DEVICE void load(unsigned to, unsigned barrier, int column, int row) const {
    UNROLL
    for (int i = 0; i < kEpilogue.loaded; ++i) tma::load(tensors[i], to + i * kTmaBoxBytes, barrier, column, row);
  }

  // A thread's part in running the program. Its tiles have kColumns columns, which are always the same columns of the
  // result.
  template <int kColumns>
  class Thread {
    static constexpr int kValues = kAtLeastOne<Program::kChannelValues>;
    static constexpr bool kLoads = Program::kLoaded > kEpilogue.loaded + (Program::kAcc >= 0);
    static constexpr bool kWrites = Program::kStored > kEpilogue.stored;
    // Groups of 8 columns that are computed at once, so that as many loads are in flight as registers allow.
    static constexpr int kGroups = !kLoads || kColumns > 128 ? 2 : 4;

   public:
    // channels: shared memory for the values of channels, which are computed here by so many threads.
    DEVICE Thread(const RunsProgram& of, int column, float* channels, int threads)
        : p(of.p), tensors(of.tensors), channels_(channels) {
      for (int at = thread_id() * 2; Program::kChannelValues && at < kColumns; at += threads * 2) {
        float inputs[kAtLeastOne<Program::kChannelInputs>][2], values[2][kValues];
        Program::channel_inputs(p, least(column + at, p.width - 2), 0, inputs);
        UNROLL
        for (int e = 0; e < 2; ++e) Program::of_channel(p, inputs, e, values[e]);
        UNROLL
        for (int i = 0; i < Program::kChannelValues; ++i) {
          const float two[2] = {values[0][i], values[1][i]};
          reformer::store<fp32, 2>(channels + i * kColumns + at, narrow<fp32, 2>(two));
        }
      }
    }

    // Runs the program on box number `box` of the tile, of which this warp has the rows from `row` on. boxes: of the
    // tensors that were loaded, over which those to be stored are written.
    DEVICE void run(const float (&sums)[kColumns / 8][4], int box, unsigned char* boxes, int row, int column) const {
      // Without branches, so that instructions of all groups interleave. Columns past the end are not stored.
      UNROLL
      for (int i = 0; i < 8; i += kGroups) some(sums, box * 8 + i, boxes, row, column + i * 8);
    }

    // Starts to store the boxes.
    DEVICE void store(unsigned from, int column, int row) const {
      UNROLL
      for (int i = 0; i < kEpilogue.stored; ++i)
        tma::store(tensors[kEpilogue.loaded + i], from + i * kTmaBoxBytes, column, row);
    }

    // Reduces a box of results, whose first row is `row`. The result is the first tensor that is stored.
    DEVICE void reduce(const unsigned char* box, int number, int row) { reduction_.add(box, number, p.lines - row); }

    // To be called after the last tile: writes the reduction's partial result number `part`. shared: the group's
    // boxes.
    DEVICE void end(unsigned char* shared, int group, int part, int column) const {
      reduction_.end(reinterpret_cast<float*>(shared), p, group, part, column);
    }

   private:
    using Result = typename Program::Result;

    // Rows past the end are computed from the tensors of the last row, and not written; likewise columns.
    DEVICE void some(const float (&sums)[kColumns / 8][4], int first, unsigned char* boxes, int row, int column) const {
      const int lane = lane_id(), own_row = row + lane / 4, own_column = column + lane % 4 * 2;
      float x[kGroups][2][kAtLeastOne<Program::kLoaded>][2];
      if constexpr (kLoads) {
        UNROLL
        for (int i = 0; i < kGroups; ++i) {
          UNROLL
          for (int half = 0; half < 2; ++half)
            Program::template load<2, true, kLoaded>(p, least(own_row + half * 8, p.lines - 1),
                                                     least(own_column + i * 8, p.width - 2), x[i][half]);
        }
      }
      UNROLL
      for (int i = 0; i < kGroups; i += 2) {
        read(boxes, first + i, x[i], x[i + 1]);
        unsigned words[kEpilogue.stored][4];
        UNROLL
        for (int j = 0; j < 2; ++j) {
          float channel[2][kValues];
          read_channels(first + i + j, channel);
          UNROLL
          for (int half = 0; half < 2; ++half) {
            float stored[Program::kStored][2];
            UNROLL
            for (int e = 0; e < 2; ++e) {
              float values[kAtLeastOne<Program::kLoaded>], results[Program::kStored], reduced[1];
              UNROLL
              for (int k = 0; k < Program::kLoaded; ++k)
                values[k] = k == Program::kAcc ? sums[first + i + j][half * 2 + e] : x[i + j][half][k][e];
              Program::of_element(p, channel[e], values, nullptr, results, reduced);  // the result itself is reduced
              UNROLL
              for (int k = 0; k < Program::kStored; ++k) stored[k][e] = results[k];
            }
            UNROLL
            for (int k = 0; k < Program::kStored; ++k)
              if (kStored >> k & 1)
                words[count_bits(kStored & ((1ull << k) - 1))][j * 2 + half] =
                    narrow_pair<Result>(stored[k][0], stored[k][1]);
            if constexpr (kWrites) {
              const int at_row = own_row + half * 8, at_column = own_column + (i + j) * 8;
              if (at_row < p.lines && at_column < p.width)
                Program::template store<kStored, 2>(p, static_cast<long long>(at_row) * p.width + at_column, stored);
            }
          }
        }
        UNROLL
        for (int k = 0; k < kEpilogue.stored; ++k)
          tma::store_matrices<false>(tma::shared_address(boxes + k * kTmaBoxBytes + place_in_box<false>(first + i)),
                                     words[k][0], words[k][1], words[k][2], words[k][3]);
      }
    }

    // Reads two groups of 8 columns of the tensors that were loaded.
    template <int kSize>
    DEVICE void read(const unsigned char* from, int first, float (&low)[2][kSize][2],
                     float (&high)[2][kSize][2]) const {
      UNROLL
      for (int k = 0; k < Program::kLoaded; ++k) {
        if (!(kLoaded >> k & 1)) continue;
        unsigned words[4];
        mma_sync::load_matrices<false>(
            from + count_bits(kLoaded & ((1ull << k) - 1)) * kTmaBoxBytes + place_in_box<false>(first), words);
        UNROLL
        for (int half = 0; half < 2; ++half) {
          UNROLL
          for (int e = 0; e < 2; ++e) {
            low[half][k][e] = element<Result>(words[half], e);
            high[half][k][e] = element<Result>(words[2 + half], e);
          }
        }
      }
    }

    // number: of the group of 8 columns in the tile.
    DEVICE void read_channels(int number, float (&to)[2][kValues]) const {
      UNROLL
      for (int i = 0; i < Program::kChannelValues; ++i) {
        float two[2];
        widen<fp32, 2>(reformer::load<fp32, 2>(channels_ + i * kColumns + number * 8 + lane_id() % 4 * 2), two);
        to[0][i] = two[0], to[1][i] = two[1];
      }
    }

    DEVICE static int least(int a, int b) { return a < b ? a : b; }

    const StitchArgs& p;
    const TensorMap* tensors;
    const float* channels_;
    TileReduction<Program, kColumns> reduction_;
  };
};

}  // namespace
}  // namespace reformer
