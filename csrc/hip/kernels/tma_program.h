// What happens to the sums of tma_tiles.h before they are stored: nothing, or a program (docs/epilogue.md).
#pragma once

#include "program.h"

namespace reformer {
namespace {

struct NoProgram {
  template <int kSums>
  struct Thread {
    DEVICE explicit Thread(const NoProgram&) {}
    DEVICE void begin(int) {}
    DEVICE void run(float (&)[kSums][4], int, int, int) const {}
  };
};

template <class Program>
struct RunsProgram {
  static_assert(!Program::kReductions && !Program::kStoresChannels);
  const StitchArgs& p;

  // What a thread has to do with it, whose tiles have 8 * kSums columns, always the same of the result.
  template <int kSums>
  class Thread {
   public:
    DEVICE explicit Thread(const RunsProgram& program) : p(program.p) {}

    // column: of the tiles' first. What belongs to channels is read once, if there are registers to keep it.
    DEVICE void begin(int column) {
      if constexpr (kKeeps) {
        UNROLL
        for (int i = 0; i < kSums; ++i) of_channels(column + lane_id() % 4 * 2 + i * 8, kept[i]);
      }
    }

    // Of a tile's sums in pairs, as mma holds them, those of 64 columns: from `column` on, of the warp's rows from
    // `row` on. What is stored as the result takes their place; what else is stored, is written here.
    DEVICE void run(float (&sums)[kSums][4], int first, int row, int column) const {
      // So many times 8 columns' loads are under way together: as many as there are registers for.
      constexpr bool kMany = Program::kLoaded > 2 || (!kKeeps && Program::kChannelValues > 2);
      constexpr int kTogether = Program::kLoaded > 1 ? (kMany ? 2 : 4) / (kSums > 16 ? 2 : 1) : kMany ? 4 : 8;
      UNROLL
      for (int i = 0; i < 8; i += kTogether) some<kTogether>(sums, first + i, row, column + i * 8);
    }

   private:
    static constexpr int kValues = kAtLeastOne<Program::kChannelValues>;
    static constexpr int kRegisters = (2 * Program::kChannelValues + 4) * kSums;  // with the sums
    static constexpr bool kKeeps = Program::kChannelValues && kRegisters <= (Program::kLoaded > 1 ? 112 : 160);

    // Columns past the end are computed from the last ones' tensors, and not written.
    DEVICE void of_channels(int column, float (&to)[2][kValues]) const {
      float inputs[kAtLeastOne<Program::kChannelInputs>][2];
      Program::channel_inputs(p, least(column, p.width - 2), inputs);
      UNROLL
      for (int e = 0; e < 2; ++e) Program::of_channel(p, inputs, e, to[e]);
    }

    // So are rows.
    template <int kTogether>
    DEVICE void some(float (&sums)[kSums][4], int first, int row, int column) const {
      if (column >= p.width) return;
      const int lane = lane_id();
      row += lane / 4, column += lane % 4 * 2;
      float channels[kTogether][2][kValues], x[kTogether][2][kAtLeastOne<Program::kLoaded>][2];
      UNROLL
      for (int i = 0; i < kTogether; ++i) {
        if constexpr (!kKeeps) of_channels(column + i * 8, channels[i]);
        UNROLL
        for (int half = 0; half < 2; ++half)
          Program::template load<2, true>(p, least(row + half * 8, p.lines - 1), least(column + i * 8, p.width - 2),
                                          x[i][half]);
      }
      UNROLL
      for (int i = 0; i < kTogether; ++i) {
        float stored[2][Program::kStored][2];
        UNROLL
        for (int e = 0; e < 2; ++e) {
          const float* const channel = kKeeps ? kept[kKeeps ? first + i : 0][e] : channels[i][e];
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

    const StitchArgs& p;
    float kept[kKeeps ? kSums : 1][2][kValues];
  };
};

}  // namespace
}  // namespace reformer
