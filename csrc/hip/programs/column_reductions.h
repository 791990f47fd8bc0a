// A block's reductions of columns: each thread accumulates its own columns over the lines that it computes; at the end
// the accumulators of threads with the same columns are combined.
#pragma once

#include "reductions.h"

namespace reformer {
namespace {

// A thread's accumulator of one reduction. Moments accumulate differences from the thread's first value, so that a
// large mean costs no accuracy.
template <Kind kKind>
struct Accumulator {
  Known<kKind> known;
  template <class X>
  DEVICE void add(const X& x) {
    known.add(x);
  }
  // Adds the first `some` of these values.
  template <int kMost>
  DEVICE void add(const float (&values)[kMost], int some) {
    UNROLL
    for (int i = 0; i < kMost; ++i)
      if (i < some) known.add(values[i]);
  }
};
template <>
struct Accumulator<Kind::moments> {
  float count = 0, origin = 0, sum = 0, squares = 0;
  DEVICE void add(float x) {
    origin = count == 0 ? x : origin;
    const float difference = x - origin;
    count += 1;
    sum += difference;
    squares += difference * difference;
  }
  template <int kMost>
  DEVICE void add(const float (&values)[kMost], int some) {
    if (some <= 0) return;
    origin = count == 0 ? values[0] : origin;
    count += float(some < kMost ? some : kMost);
    UNROLL
    for (int i = 0; i < kMost; ++i) {
      const float difference = i < some ? values[i] - origin : 0.0f;
      sum += difference;
      squares += difference * difference;
    }
  }
  // Adds all values of a partial result. Without divisions, which would wait for each other.
  DEVICE void add(const Known<Kind::moments>& part) {
    if (part.count == 0) return;
    const float difference = count == 0 ? 0.0f : part.value - origin;  // an infinite mean is kept
    origin = count == 0 ? part.value : origin;
    count += part.count;
    sum += part.count * difference;
    squares += part.squares + part.count * difference * difference;
  }
};
template <Kind kKind>
DEVICE Known<kKind> known(const Accumulator<kKind>& accumulator) {
  if constexpr (kKind == Kind::moments) {
    if (accumulator.count == 0) return {};
    const float mean = accumulator.sum / accumulator.count, rest = accumulator.squares - accumulator.sum * mean;
    return {accumulator.count, accumulator.origin + mean, rest < 0 ? 0.0f : rest};
  } else {
    return accumulator.known;
  }
}

// Combines the partial results of `over` threads, which are `step` apart, in the one whose index among them is 0. Must
// be called by all kThreads threads of the block.
template <int kThreads, Kind kKind>
DEVICE void combine(Known<kKind>& known, float* shared, int over, int step, int place) {
  barrier();
  store_known(known, shared + thread_id(), kThreads);
  barrier();
  for (int half = over / 2; half; half /= 2) {
    if (place < half) {
      Known<kKind> other;
      load_known(other, shared + thread_id() + half * step, kThreads);
      known.add(other);
      store_known(known, shared + thread_id(), kThreads);
    }
    barrier();
  }
}

// NHWC: a block's part of the lines, and its group of columns. Blocks of the same lines follow one another, so that the
// memory that is accessed at the same time is adjacent. They begin at the end: they mostly follow a kernel that went
// forwards over the same tensors, whose end is still in the second-level cache. Those of programs with reductions all
// run at the same time, and have no registers left for their place.
struct BlockPlace {
  int part, group;
};
template <class Program>
DEVICE BlockPlace block_place(const StitchArgs& p) {
  if constexpr (Program::kReductions > 0) return {block_x(), block_y()};
  int group = p.block_parts - 1 - block_x();
  const int part = divide_with_rest(group, p.by_groups);
  return {part, group};
}

// Floats of shared memory for a block's reductions.
template <int kThreads>
constexpr int kSharedOfReductions = kNumbers * kThreads > 2048 ? kNumbers * kThreads : 2048;

// A thread's accumulators of kCount columns, for reduction i of a program and those after it.
template <class Program, int kCount, int kThreads, int i = 0, bool kMore = (i < Program::kReductions)>
struct Reductions {
  static constexpr Kind kKind = Program::kind(i);
  Accumulator<kKind> mine[kCount];
  Reductions<Program, kCount, kThreads, i + 1> rest;

  // value[i]: the value for reduction i.
  template <class Values>
  DEVICE void add(int column, const Values& value) {
    mine[column].add(value[i]);
    rest.add(column, value);
  }

  // Stores the block's partial results, where `over` threads of the block, `step` apart, have the same columns. part:
  // index among the parts of its channels; block_part: among the parts of everything. shared:
  // kSharedOfReductions<kThreads> floats.
  DEVICE void store(float* shared, int over, int step, int place, bool wanted, const StitchArgs& p, int part,
                    int block_part, int channel) {
    if constexpr (Program::over(i) == Over::all) {
      Known<kKind> all;
      UNROLL
      for (int j = 0; j < kCount; ++j)
        if (wanted && channel + j < p.channels) all.add(known(mine[j]));
      combine<kThreads>(all, shared, kThreads, 1, thread_id());
      if (thread_id() == 0) store_part<Program, i>(all, p, block_part, 0);
    } else if constexpr (kCount == 1) {
      Known<kKind> of_column = known(mine[0]);
      combine<kThreads>(of_column, shared, over, step, place);
      if (place == 0 && wanted) store_part<Program, i>(of_column, p, part, channel);
    } else {
      // Combines several columns at once; each thread combines some of them: halves, quarters, and so on.
      constexpr int kSize = kKind == Kind::moments ? 3 : 1, kFit = kSharedOfReductions<kThreads> / (kSize * kThreads);
      constexpr int kAtOnce = kFit < kCount ? kFit : kCount, kApart = kAtOnce * kThreads;
      float* const first_thread = shared + thread_id() - place * step;
      UNROLL
      for (int first = 0; first < kCount; first += kAtOnce) {
        barrier();
        UNROLL
        for (int j = 0; j < kAtOnce; ++j)
          if (first + j < kCount) store_known(known(mine[first + j]), shared + j * kThreads + thread_id(), kApart);
        barrier();
        for (int half = over / 2; half; half /= 2) {
          for (int k = place; k < kAtOnce * half; k += over) {
            float* const one = first_thread + k / half * kThreads + k % half * step;
            Known<kKind> of_column, other;
            load_known(of_column, one, kApart);
            load_known(other, one + half * step, kApart);
            of_column.add(other);
            store_known(of_column, one, kApart);
          }
          barrier();
        }
        for (int j = place; j < kAtOnce && first + j < kCount; j += over) {
          Known<kKind> of_column;
          load_known(of_column, first_thread + j * kThreads, kApart);
          const int own = channel + first + j;
          if (wanted && own < p.channels) store_part<Program, i>(of_column, p, part, own);
        }
      }
    }
    rest.store(shared, over, step, place, wanted, p, part, block_part, channel);
  }
};
template <class Program, int kCount, int kThreads, int i>
struct Reductions<Program, kCount, kThreads, i, false> {
  template <class Values>
  DEVICE void add(int, const Values&) {}
  DEVICE void store(float*, int, int, int, bool, const StitchArgs&, int, int, int) {}
};

}  // namespace
}  // namespace reformer
