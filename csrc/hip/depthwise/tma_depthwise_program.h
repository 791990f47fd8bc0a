// The epilogue of tma_depthwise.hip's forward, applied to the sums before they are stored: adds a bias or runs a
// program (docs/programs.md).
#pragma once

#include "../device/tma.h"
#include "../device/warp.h"
#include "../programs/column_reductions.h"
#include "tma_depthwise.h"

namespace reformer {
namespace {

// A warp's work: one group of 8 channels, and every pairs_apart-th pair of strips from first_pair on.
struct WarpTask {
  int group, groups, first_pair, pairs_apart;
};

struct AddBias {
  template <class T>
  class Thread {
   public:
    DEVICE explicit Thread(const AddBias&) {}
    // channel: the first of the two channels of all sums of this lane.
    DEVICE void prepare(const TmaDepthwiseArgs& p, int channel) {
      bias_[0] = bias_[1] = 0;
      if (p.bias) widen<T, 2>(load<T, 2>(static_cast<const T*>(p.bias) + channel), bias_);
    }
    // Sets the initial sums of a pixel of each of two strips.
    DEVICE void begin(float (&sums)[4]) const {
      UNROLL
      for (int e = 0; e < 4; ++e) sums[e] = bias_[e % 2];
    }
    // Processes the sums in place before they are stored. inside: which of the two pixels are inside of the image.
    DEVICE void run(float (&)[4], const bool (&)[2]) const {}
    // Called after the last tile. shared: memory that is free.
    DEVICE void end(const TmaDepthwiseArgs&, const WarpTask&, unsigned char*) const {}

   private:
    float bias_[2];
  };
};

// The partial result of another lane; mask as in shuffle_xor().
template <Kind kKind>
DEVICE Known<kKind> known_of(const Known<kKind>& known, int mask) {
  if constexpr (kKind == Kind::moments)
    return {shuffle_xor(known.count, mask), shuffle_xor(known.value, mask), shuffle_xor(known.squares, mask)};
  else
    return {shuffle_xor(known.value, mask)};
}

// A lane's accumulators of a reduction, for its two channels.
template <Kind kKind>
struct TwoAccumulators {
  Accumulator<kKind> of[2];
  // values: of a pixel of each of two strips, like the sums; inside: which of these pixels are inside of the image.
  DEVICE void add(const float (&values)[4], const bool (&inside)[2]) {
    UNROLL
    for (int i = 0; i < 4; ++i)
      if (inside[i / 2]) of[i % 2].add(values[i]);
  }
};
// Like Accumulator, with fewer conditions per value: both channels share one count.
template <>
struct TwoAccumulators<Kind::moments> {
  Accumulator<Kind::moments> of[2];
  DEVICE void add(const float (&values)[4], const bool (&inside)[2]) {
    if (of[0].count == 0) {
      UNROLL
      for (int e = 0; e < 2; ++e) of[e].origin = inside[0] ? values[e] : values[2 + e];
    }
    UNROLL
    for (int strip = 0; strip < 2; ++strip) {
      if (!inside[strip]) continue;
      UNROLL
      for (int e = 0; e < 2; ++e) {
        const float difference = values[strip * 2 + e] - of[e].origin;
        of[e].sum += difference;
        of[e].squares += difference * difference;
      }
      of[0].count += 1;
    }
    of[1].count = of[0].count;
  }
};

// A lane's partial results of a program's reduction over channels.
template <class Program, bool kThere = (Program::kReductions > 0)>
class StripReduction {
  static_assert(Program::kReductions == 1 && Program::over(0) == Over::images && Program::first_number(0) == 0);
  static constexpr Kind kKind = Program::kind(0);
  TwoAccumulators<kKind> mine_;

 public:
  DEVICE void add(const float (&values)[4], const bool (&inside)[2]) { mine_.add(values, inside); }

  // Combines the partial results of the lanes and warps of the block for the same channels, in a fixed order, and
  // stores the block's part.
  DEVICE void end(const StitchArgs& p, const WarpTask& task, float* shared) const {
    constexpr int kPitch = kTmaDepthwiseWarps * 8;
    const int lane = lane_id();
    tma::group_barrier(1, kTmaDepthwiseWarps * 32);  // all warps have read the last tile
    UNROLL
    for (int e = 0; e < 2; ++e) {
      Known<kKind> all = known(mine_.of[e]);
      UNROLL
      for (int mask = 4; mask < 32; mask *= 2) all.add(known_of(all, mask));
      if (lane < 4) store_known(all, shared + warp_id() * 8 + lane * 2 + e, kPitch);
    }
    tma::group_barrier(1, kTmaDepthwiseWarps * 32);
    if (task.first_pair != 0 || lane >= 8) return;
    Known<kKind> all;
    for (int worker = 0; worker < task.pairs_apart; ++worker) {
      Known<kKind> other;
      load_known(other, shared + (task.group + worker * task.groups) * 8 + lane, kPitch);
      all.add(other);
    }
    store_part<Program, 0>(all, p, block_y(), block_x() * kTmaDepthwiseChannels + task.group * 8 + lane);
  }
};
template <class Program>
class StripReduction<Program, false> {
 public:
  DEVICE void add(const float (&)[4], const bool (&)[2]) {}
  DEVICE void end(const StitchArgs&, const WarpTask&, float*) const {}
};

// Has the members of AddBias.
template <class Program>
struct RunsProgram {
  static_assert(!Program::kStoresChannels && Program::kStored == 1);
  static_assert(Program::kLoaded == (Program::kAcc >= 0), "it reads nothing but channels' values");
  const StitchArgs& p;

  template <class T>
  class Thread {
   public:
    DEVICE explicit Thread(const RunsProgram& program) : p_(program.p) {}
    DEVICE void prepare(const TmaDepthwiseArgs&, int channel) {
      float inputs[kAtLeastOne<Program::kChannelInputs>][2];
      Program::channel_inputs(p_, channel, 0, inputs);
      UNROLL
      for (int e = 0; e < 2; ++e) Program::of_channel(p_, inputs, e, channel_values_[e]);
    }
    DEVICE void begin(float (&sums)[4]) const {
      UNROLL
      for (int e = 0; e < 4; ++e) sums[e] = 0;
    }
    // Pixels outside of the image are computed, too, but not reduced.
    DEVICE void run(float (&sums)[4], const bool (&inside)[2]) {
      float reduced[4];
      UNROLL
      for (int i = 0; i < 4; ++i) {
        float results[1];
        Program::of_element(p_, channel_values_[i % 2], &sums[i], nullptr, results, &reduced[i]);
        sums[i] = results[Program::kResult];
      }
      reduction_.add(reduced, inside);
    }
    DEVICE void end(const TmaDepthwiseArgs&, const WarpTask& task, unsigned char* shared) const {
      reduction_.end(p_, task, reinterpret_cast<float*>(shared));
    }

   private:
    const StitchArgs& p_;
    float channel_values_[2][kAtLeastOne<Program::kChannelValues>];
    StripReduction<Program> reduction_;
  };
};

}  // namespace
}  // namespace reformer
