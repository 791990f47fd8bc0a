// Scans of rows that threads hold in registers: running sums and products of all elements up to each one, from the
// row's begin or, reversed, from its end. A thread has kGroups groups of kCount adjacent elements; group v of all
// kLanes threads of a row precedes their group v + 1. First each thread scans its groups, then a warp its threads'
// totals, then each thread adds up what precedes its warp and its groups: always in the same order.
#pragma once

#include "../device/warp.h"
#include "reductions.h"

namespace reformer {
namespace {

template <class Program, int kLanes, int kThreads, int kGroups, int kCount>
struct RowScans {
  using Scanned = float[kGroups][kAtLeastOne<Program::kScans>][kCount];
  static constexpr int kInWarp = kLanes < kWarp ? kLanes : kWarp, kWarps = kThreads / kWarp;
  static constexpr bool kBeyondWarp = kLanes > kWarp;
  static constexpr int kHalf = Program::kScans * kGroups * kWarps, kShared = kBeyondWarp && kHalf ? 2 * kHalf : 1;
  float* const shared;  // two halves used in turns, so that one barrier per turn suffices
  int turn = 0;

  // Sets what scans kFirst to kFirst + kSome - 1 have in place of elements past the row's end.
  template <int kFirst, int kSome>
  DEVICE static void clear(Scanned& of) {
    UNROLL
    for (int v = 0; v < kGroups; ++v) {
      UNROLL
      for (int i = kFirst; i < kFirst + kSome; ++i) fill(nothing(Program::scan_kind(i)), of[v][i]);
    }
  }

  // Replaces the elements by the scans' results. Must be called by all threads of the block.
  template <int kFirst, int kSome>
  DEVICE void run(Scanned& of) {
    float before[kSome][kGroups], totals[kSome][kGroups];  // of the elements of a row in the thread's warp
    UNROLL
    for (int i = 0; i < kSome; ++i) {
      UNROLL
      for (int v = 0; v < kGroups; ++v) in_warp<kFirst>(i, of[v][kFirst + i], before[i][v], totals[i][v]);
    }
    if constexpr (kBeyondWarp) beyond_warp<kFirst>(before, totals);
    UNROLL
    for (int i = 0; i < kSome; ++i) {
      const Kind kind = Program::scan_kind(kFirst + i);
      float carry = nothing(kind);
      UNROLL
      for (int n = 0; n < kGroups; ++n) {
        const int v = Program::is_reversed(kFirst + i) ? kGroups - 1 - n : n;
        const float begin = joined(kind, carry, before[i][v]);
        UNROLL
        for (int j = 0; j < kCount; ++j) of[v][kFirst + i][j] = joined(kind, begin, of[v][kFirst + i][j]);
        carry = joined(kind, carry, totals[i][v]);
      }
    }
  }

 private:
  // Scans a group. before: the total of the groups before it in the warp; total: of all.
  template <int kFirst>
  DEVICE static void in_warp(int i, float (&group)[kCount], float& before, float& total) {
    const Kind kind = Program::scan_kind(kFirst + i);
    const bool reversed = Program::is_reversed(kFirst + i);
    UNROLL
    for (int j = 1; j < kCount; ++j) {
      const int at = reversed ? kCount - 1 - j : j, last = reversed ? at + 1 : at - 1;
      group[at] = joined(kind, group[last], group[at]);
    }
    before = nothing(kind), total = group[reversed ? 0 : kCount - 1];
    // Pairs of lanes, then pairs of such pairs, and so on.
    UNROLL
    for (int mask = 1; mask < kInWarp; mask *= 2) {
      const float other = shuffle_xor(total, mask);
      if (bool(lane_id() & mask) != reversed) before = joined(kind, other, before);
      total = joined(kind, total, other);
    }
  }

  // Extends both to all warps of the row.
  template <int kFirst, int kSome>
  DEVICE void beyond_warp(float (&before)[kSome][kGroups], float (&totals)[kSome][kGroups]) {
    constexpr int kWarpsOfRow = kLanes / kWarp;
    float* const memory = shared + turn * kHalf;
    turn ^= 1;
    if (lane_id() == 0) {
      UNROLL
      for (int i = 0; i < kSome; ++i) {
        UNROLL
        for (int v = 0; v < kGroups; ++v) memory[(i * kGroups + v) * kWarps + warp_id()] = totals[i][v];
      }
    }
    barrier();
    const int first = thread_id() / kLanes * kWarpsOfRow;
    UNROLL
    for (int i = 0; i < kSome; ++i) {
      const Kind kind = Program::scan_kind(kFirst + i);
      UNROLL
      for (int v = 0; v < kGroups; ++v) {
        const float* const of_warps = memory + (i * kGroups + v) * kWarps + first;
        float of_earlier = nothing(kind), total = nothing(kind);
        UNROLL
        for (int n = 0; n < kWarpsOfRow; ++n) {
          const int w = Program::is_reversed(kFirst + i) ? kWarpsOfRow - 1 - n : n;
          if (first + w == warp_id()) of_earlier = total;
          total = joined(kind, total, of_warps[w]);
        }
        before[i][v] = joined(kind, of_earlier, before[i][v]), totals[i][v] = total;
      }
    }
  }
};

}  // namespace
}  // namespace reformer
