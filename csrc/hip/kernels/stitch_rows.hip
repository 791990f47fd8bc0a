// Programs whose rows (all channels of a pixel, adjacent in memory) are reduced to what the rest of the row's values
// need: softmax, layer norm, their derivatives.
//
// kLanes threads of a block have a row. Reductions that need no other one's result are stage 0, those that need these
// stage 1, and so on: a stage computes its values anew from what was loaded, whose repeated part the compiler takes
// out where rows stay in registers. Rows too long for that are in shared memory, or are read once a stage, from the
// second-level cache.
//
// A channel's number that is compared with one of the row (the class of a loss) differs from it in almost all groups of
// elements: groups that are not near it are computed by a text that knows that (of_element<false>).
//
// The text of a program follows the file, as it does stitch.hip.
#include "../device/grid_dependency.h"
#include "column_reductions.h"

namespace reformer {
namespace {

template <bool kValue>
struct Constant {
  static constexpr bool value = kValue;
};

// visit(Constant): whether a group of `count` elements, which begins at this channel, may have the one that a row's
// number names. w: what the pass has of the row.
template <class Program, int kPass, class Visit>
DEVICE void visit_near(int channel, int count, const float* w, Visit visit) {
  if constexpr (Program::compares_channels(kPass)) {
    if (Program::template is_near<kPass>(float(channel), float(channel + count), w))
      visit(Constant<true>{});
    else
      visit(Constant<false>{});
  } else {
    visit(Constant<true>{});
  }
}

// Bytes of a row that a thread holds at most, if it holds as many of the next one. AMD's kernels would spill.
#if defined(REFORMER_AMD)
constexpr int kMostHeldTwice = 0;
#else
constexpr int kMostHeldTwice = 112;
#endif

// The groups of kCount elements that a thread has of a row, all in registers, and, where there is room, those of the
// next row, which are read meanwhile. kWhole: rows end where the last thread's groups do. Then nothing is asked of a
// group, and the compiler computes what several stages need once.
template <class Program, int kCount, int kVectors, int kLanes, bool kWhole>
struct RowInRegisters {
  using Group = VectorizedElements<Program, kCount, true>;
  using Held = typename Program::template Held<kCount>;
  static constexpr int kGroups = kVectors, kApart = kLanes * kCount;
  // What depends on channels is read again for each row where it would need too many registers; where elements need
  // many, each stage makes numbers of them again, and the next row is not read ahead.
  static constexpr bool kHoldsChannels = Program::kChannelValues * kVectors * kCount <= 32;
  static constexpr bool kIsSmall = sizeof(Held) * kVectors <= kMostHeldTwice;
  Group groups[kVectors];
  Held held[kVectors], ahead[kIsSmall ? kVectors : 1];
  const int begin = thread_id() % kLanes * kCount;

  DEVICE RowInRegisters(const StitchArgs& p, int first_line) {
    if constexpr (kHoldsChannels) {
      UNROLL
      for (int v = 0; v < kVectors; ++v) groups[v].begin(p, column(p, v));
    }
    if constexpr (kIsSmall) read(p, first_line, ahead);
  }
  DEVICE bool wanted(const StitchArgs& p, int v) const { return kWhole || v * kApart + begin < p.width; }
  // A group past the row's end is read from the row's beginning instead.
  DEVICE int column(const StitchArgs& p, int v) const { return wanted(p, v) ? v * kApart + begin : 0; }

  DEVICE const Held& of_row() const { return held[0]; }
  // Goes on to a row; `next` is the one after it, -1 if it is the last.
  DEVICE void load(const StitchArgs& p, int line, int next) {
    if constexpr (kIsSmall) {
      UNROLL
      for (int v = 0; v < kVectors; ++v) held[v] = ahead[v];
      if (next >= 0) read(p, next, ahead);
    } else {
      read(p, line, held);
    }
  }
  // visit(v, column, group, loaded) for each group of the row, or at least for those before column `end`. kFirst: for
  // the first time.
  template <bool kFirst, class Visit>
  DEVICE void each(const StitchArgs& p, int line, int, Visit visit) {
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      if (!wanted(p, v)) continue;
      if constexpr (!kHoldsChannels) groups[v].begin(p, column(p, v));
      if constexpr (!kIsSmall) held[v].forget();
      typename Group::Loaded loaded;
      held[v].widen(p, line, column(p, v), loaded.values);
      visit(v, column(p, v), groups[v], loaded);
    }
  }

 private:
  DEVICE void read(const StitchArgs& p, int line, Held (&to)[kVectors]) const {
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      to[v].read_row(p, line);
      to[v].read(p, line, column(p, v));
    }
  }
};

// All threads of a block have one row. kKept: what is read at first is kept in shared memory, each thread's for itself,
// so that nobody waits; else it is read again each time. kAhead: groups of a thread that are read at once.
template <class Program, int kCount, int kLanes, bool kKept, int kAhead>
struct LongRow {
  using Group = VectorizedElements<Program, kCount, true>;
  using Held = typename Program::template Held<kCount>;
  static constexpr int kGroups = 1;
  static_assert(Program::kReductions == 0, "what is added up over rows has no place");
  Held common;  // what is the same for all of the row

  DEVICE LongRow(const StitchArgs&, int) {}
  DEVICE void load(const StitchArgs& p, int line, int) { common.read_row(p, line); }
  DEVICE const Held& of_row() const { return common; }
  template <bool kFirst, class Visit>
  DEVICE void each(const StitchArgs& p, int line, int end, Visit visit) {
    DYNAMIC_SHARED(kept);
    constexpr int kUnroll = kKept && !kFirst ? 1 : kAhead;
    for (int at = thread_id() % kLanes * kCount; at < end; at += kUnroll * kLanes * kCount) {
      Group groups[kUnroll];
      Held held[kUnroll];
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int column = at + i * kLanes * kCount, there = column < p.width ? column : at;
        groups[i].begin(p, there);
        held[i] = common;
        if constexpr (kKept && !kFirst)
          held[i].take(kept, p.width, there);
        else
          held[i].read(p, line, there);
      }
      UNROLL
      for (int i = 0; i < kUnroll; ++i) {
        const int column = at + i * kLanes * kCount;
        if (column >= end) continue;
        if constexpr (kKept && kFirst) held[i].put(kept, p.width, column);
        typename Group::Loaded loaded;
        held[i].widen(p, line, column, loaded.values);
        visit(0, column, groups[i], loaded);
      }
    }
  }
};

// The reductions of a program's rows, stage by stage.
template <class Program, int kLanes, int kThreads>
struct RowReductions {
  static constexpr int kInWarp = kLanes < kWarp ? kLanes : kWarp, kWarps = kThreads / kWarp;
  static constexpr bool kBeyondWarp = kLanes > kWarp;
  static constexpr int kShared = kBeyondWarp ? 2 * kAtLeastOne<Program::kRowReductions> * kWarps : 1;
  float* const shared;  // two turns, so that one barrier a turn is enough
  int turn = 0;
  float results[kAtLeastOne<Program::kRowReductions>];

  DEVICE static float joined(int i, float a, float b) { return Program::is_row_max(i) ? larger_of(a, b) : a + b; }

  template <int kStage = 0, class Row>
  DEVICE void run(const StitchArgs& p, int line, Row& row) {
    if constexpr (kStage < Program::kStages) {
      constexpr int kFirst = Program::stage_begin(kStage), kCount = Program::stage_begin(kStage + 1) - kFirst;
      float mine[kCount];
      UNROLL
      for (int i = 0; i < kCount; ++i) mine[i] = Program::is_row_max(kFirst + i) ? bits_to_float(0xff800000u) : 0.0f;
      float w[kAtLeastOne<Program::row_values(kStage)>];
      row.of_row().template row_values<kStage>(p, results, w);
      row.template each<kStage == 0>(p, line, p.width, [&](int, int column, const auto& group, const auto& loaded) {
        visit_near<Program, kStage>(column, group.kChannels, w, [&](auto near) {
          UNROLL
          for (int j = 0; j < group.kChannels; ++j) {
            float values[kAtLeastOne<Program::kLoaded>], some[kCount];
            group.element(loaded, j, values);
            Program::template of_row<kStage, near.value>(p, group.channel[j], values, w, some);
            UNROLL
            for (int i = 0; i < kCount; ++i) mine[i] = joined(kFirst + i, mine[i], some[i]);
          }
        });
      });
      combine<kFirst>(mine);
      run<kStage + 1>(p, line, row);
    }
  }

 private:
  // Combines what the row's threads have, in all of them.
  template <int kFirst, int kCount>
  DEVICE void combine(float (&mine)[kCount]) {
    UNROLL
    for (int i = 0; i < kCount; ++i) {
      UNROLL
      for (int mask = kInWarp / 2; mask; mask /= 2) mine[i] = joined(kFirst + i, mine[i], shuffle_xor(mine[i], mask));
    }
    if constexpr (kBeyondWarp) {
      float* const memory = shared + turn * (Program::kRowReductions * kWarps);
      turn ^= 1;
      if (lane_id() == 0) {
        UNROLL
        for (int i = 0; i < kCount; ++i) memory[i * kWarps + warp_id()] = mine[i];
      }
      barrier();
      const int first = thread_id() / kLanes * (kLanes / kWarp);
      UNROLL
      for (int i = 0; i < kCount; ++i) {
        mine[i] = memory[i * kWarps + first];
        UNROLL
        for (int w = 1; w < kLanes / kWarp; ++w) mine[i] = joined(kFirst + i, mine[i], memory[i * kWarps + first + w]);
      }
    }
    UNROLL
    for (int i = 0; i < kCount; ++i) results[kFirst + i] = mine[i];
  }
};

// Row: one of the above.
template <class Program, class Row, int kLanes, int kThreads>
DEVICE void stitch_rows(const StitchArgs& p) {
  constexpr int kRows = kThreads / kLanes, kCount = Row::Group::kChannels;  // rows that a block computes at once
  using Sums = RowReductions<Program, kLanes, kThreads>;
  // What has numbers of rows only looks at no more than the row's beginning in the end; 0: at all of it.
  constexpr int kEnd = Program::kStored || Program::kReductions ? 0 : 1;
  SHARED float of_rows[Sums::kShared];
  SHARED float of_columns[Program::kReductions ? kNumbers * kThreads : 1];
  const int place = thread_id() / kLanes, step = p.parts * kRows;
  // All threads take part in the reductions: past the last row with that.
  const auto line_from = [&](int first) { return first + place < p.lines ? first + place : p.lines - 1; };
  grid_dependency_wait();
  Row row(p, line_from(block_x() * kRows));
  Sums sums{of_rows};
  Reductions<Program, kCount, kThreads> reductions[Row::kGroups];
  for (int first = block_x() * kRows; first < p.lines; first += step) {
    const int line = line_from(first);
    row.load(p, line, first + step < p.lines ? line_from(first + step) : -1);
    sums.run(p, line, row);
    if (first + place >= p.lines) continue;
    float w[kAtLeastOne<Program::row_values(Program::kStages)>];
    row.of_row().template row_values<Program::kStages>(p, sums.results, w);
    const auto compute = [&](int v, int column, const auto& group, const auto& loaded) {
      typename Row::Group::Stored stored;
      visit_near<Program, Program::kStages>(column, kCount, w, [&](auto near) {
        UNROLL
        for (int j = 0; j < kCount; ++j) {
          float reduced[kAtLeastOne<Program::kReductions>];
          group.template compute<near.value>(p, loaded, j, w, stored, reduced);
          reductions[v].add(j, reduced);
        }
      });
      Program::template store<true, kCount>(p, static_cast<long long>(line) * p.width + column, stored, line, column);
      if constexpr (Program::kStoresRows)
        if (column == 0) row.of_row().store_row(p, line, sums.results);
    };
    row.template each<Program::kStages == 0>(p, line, kEnd ? kEnd : p.width, compute);
  }
  if constexpr (Program::kReductions > 0) {
    UNROLL
    for (int v = 0; v < Row::kGroups; ++v)
      reductions[v].store(of_columns, kRows, kLanes, place, row.wanted(p, v), p, block_x(), row.column(p, v));
  }
  if constexpr (Program::kStoresChannels)
    for (int i = block_x() * kThreads + thread_id(); i < p.channels; i += p.parts * kThreads)
      Program::store_channel(p, i, 0);
}

}  // namespace
}  // namespace reformer

// blocks: of a multiprocessor at least, or 0. The rest is the Row.
#define REFORMER_STITCH_ROWS(name, Program, lanes, threads, blocks, ...) \
  KERNEL_OCCUPANCY(threads, blocks) name(reformer::StitchArgs p) {       \
    reformer::grid_dependency_launch();                                  \
    using namespace reformer;                                            \
    stitch_rows<reformer::Program, __VA_ARGS__, lanes, threads>(p);      \
  }
