// What happens to the sums of tma_tiles.h before they are stored: nothing, or a program (docs/epilogue.md).
#pragma once

#include "program.h"

namespace reformer {
namespace {

struct NoProgram {
  template <int kSums>
  DEVICE void run(float (&)[kSums][4], int, int, int) const {}
};

template <class Program>
struct RunsProgram {
  static_assert(!Program::kReductions && !Program::kStoresChannels);
  const StitchArgs& p;

  // Of a tile's sums in pairs, as mma holds them, those of 64 columns: from `column` on, of the warp's rows from `row`
  // on. What is stored as the result takes their place; what else is stored, is written here.
  template <int kSums>
  DEVICE void run(float (&sums)[kSums][4], int first, int row, int column) const {
    // So many times 8 columns' loads are under way together: as many as there are registers for.
    constexpr bool kMany = Program::kLoaded > 2 || Program::kChannelValues > 2;
    constexpr int kTogether = (kMany ? 2 : 4) / (kSums > 16 ? 2 : 1);
    UNROLL
    for (int i = 0; i < 8; i += kTogether) some<kTogether>(sums, first + i, row, column + i * 8);
  }

 private:
  // Rows and columns past the end are computed from the last ones' tensors, and not written.
  template <int kTogether, int kSums>
  DEVICE void some(float (&sums)[kSums][4], int first, int row, int column) const {
    if (column >= p.width) return;
    const int lane = lane_id();
    row += lane / 4, column += lane % 4 * 2;
    float inputs[kTogether][kAtLeastOne<Program::kChannelInputs>][2], x[kTogether][2][kAtLeastOne<Program::kLoaded>][2];
    UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int at = least(column + i * 8, p.width - 2);
      Program::channel_inputs(p, at, inputs[i]);
      UNROLL
      for (int half = 0; half < 2; ++half)
        Program::template load<2, true>(p, least(row + half * 8, p.lines - 1), at, x[i][half]);
    }
    UNROLL
    for (int i = 0; i < kTogether; ++i) {
      float stored[2][Program::kStored][2];
      UNROLL
      for (int e = 0; e < 2; ++e) {
        float channel[kAtLeastOne<Program::kChannelValues>];
        Program::of_channel(p, inputs[i], e, channel);
        UNROLL
        for (int half = 0; half < 2; ++half) {
          float& sum = sums[first + i][half * 2 + e];
          float values[kAtLeastOne<Program::kLoaded>], results[Program::kStored];
          UNROLL
          for (int k = 0; k < Program::kLoaded; ++k) values[k] = k == Program::kAcc ? sum : x[i][half][k][e];
          Program::of_element(p, channel, values, results, nullptr);
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
};

}  // namespace
}  // namespace reformer
