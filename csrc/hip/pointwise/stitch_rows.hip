// Programs that reduce rows (all channels of a pixel, adjacent in memory) to numbers on which the rest of the row's
// values depend: softmax, layer norm, their derivatives.
//
// A row has kLanes threads of a block. Reductions that need no other reduction's result are stage 0, those that need
// these stage 1, and so on; so do scans (running sums and products), whose results stay in registers. Each stage
// computes its values anew from what was loaded; if rows are in registers, the compiler eliminates the repeated part.
// Longer rows are kept in shared memory, or are read once per stage, from the second-level cache.
//
// A channel's number that is compared with a number of the row (the class of a loss) differs from it in almost all
// groups of elements: groups that can't contain it use a specialised function (of_element<false>).
//
// The text of a program follows this file, as in stitch.hip.
#include "../device/grid_dependency.h"
#include "../programs/column_reductions.h"
#include "../programs/mapped.h"
#include "../programs/row_scans.h"

namespace reformer {
namespace {

template <bool kValue>
struct Constant {
  static constexpr bool value = kValue;
};

// Values of pass kPass that are common to the whole row.
template <class Program, int kPass>
struct OfRow {
  static constexpr int kNamed = Program::named_channels(kPass);
  float values[kAtLeastOne<Program::row_values(kPass)>];
  int named[kAtLeastOne<kNamed>];

  template <class Held>
  DEVICE OfRow(const StitchArgs& p, const Held& held, const float* reductions) {
    held.template row_values<kPass>(p, reductions, values);
    Program::template name_channels<kPass>(values, named);
  }
  // Calls visit(Constant): true if a group of `count` elements from this channel on may contain a named channel.
  template <class Visit>
  DEVICE void visit_near(int channel, int count, Visit visit) const {
    bool near = !kNamed;
    UNROLL
    for (int i = 0; i < kNamed; ++i) near = near || unsigned(named[i]) - unsigned(channel) < unsigned(count);
    if (near)
      visit(Constant<true>{});
    else if constexpr (kNamed > 0)
      visit(Constant<false>{});
  }
};

// Greatest number of bytes of a row's tensors per thread if it also holds the next row. More would spill on AMD GPUs.
#if defined(REFORMER_AMD)
constexpr int kMostHeldTwice = 0;
#else
constexpr int kMostHeldTwice = 112;
#endif

// The groups of kCount elements of a row that a thread has, all in registers, and, if there is room, those of the next
// row, which are read in the meantime. kWhole: rows end where the last thread's groups do; then groups need no checks,
// and the compiler computes values that several stages need only once. kTails: rows end within a group, the last one of
// its thread.
template <class Program, int kCount, int kVectors, int kLanes, bool kWhole, bool kTails>
struct RowInRegisters {
  using Group = VectorizedElements<Program, kCount, true>;
  using Held = typename Program::template Held<kCount>;
  static constexpr int kGroups = kVectors, kApart = kLanes * kCount;
  // Values of channels are read again for each row if they would need too many registers. If elements need many, each
  // stage widens them again, and the next row is not read ahead.
  static constexpr bool kHoldsChannels = Program::kChannelValues * kVectors * kCount <= 32;
  static constexpr bool kIsSmall = Held::bytes() * kVectors <= kMostHeldTwice;
  Group groups[kVectors];
  Held held[kVectors], ahead[kIsSmall ? kVectors : 1];
  float scanned[kVectors][kAtLeastOne<Program::kScans>][kCount];
  // With 64 bits, so that the addresses of a thread's groups differ by constants.
  const long long begin = thread_id() % kLanes * kCount;

  DEVICE RowInRegisters(const StitchArgs& p, int first_line) {
    if constexpr (kHoldsChannels) {
      UNROLL
      for (int v = 0; v < kVectors; ++v)
        visit_there(p, v, [&](const auto& there) { groups[v].begin(p, column(p, v), 0, there); });
    }
    if constexpr (kIsSmall) read(p, first_line, ahead);
  }
  // Only a thread's last group may lie past the row's end.
  DEVICE bool wanted(const StitchArgs& p, int v) const {
    return kWhole || v < kVectors - 1 || v * kApart + begin < p.width;
  }
  // A group past the row's end reads the row's beginning instead.
  DEVICE long long column(const StitchArgs& p, int v) const { return wanted(p, v) ? v * kApart + begin : 0; }

  DEVICE const Held& of_row() const { return held[0]; }
  // Proceeds to a row; `next` is the row after it, -1 if it is the last.
  DEVICE void load(const StitchArgs& p, int line, int next) {
    if constexpr (kIsSmall) {
      UNROLL
      for (int v = 0; v < kVectors; ++v) held[v] = ahead[v];
      if (next >= 0) read(p, next, ahead);
    } else {
      read(p, line, held);
    }
  }
  // Calls visit(v, column, group, loaded, there) for each group of the row.
  template <int kPass, class Visit>
  DEVICE void each(const StitchArgs& p, int line, Visit visit) {
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      if (!wanted(p, v)) continue;
      visit_there(p, v, [&](const auto& there) {
        if constexpr (!kHoldsChannels) groups[v].begin(p, column(p, v), 0, there);
        if constexpr (!kIsSmall) held[v].forget();
        typename Group::Loaded loaded;
        held[v].widen(p, line, column(p, v), loaded.values);
        UNROLL
        for (int i = 0; i < Program::kScans; ++i) {
          UNROLL
          for (int j = 0; j < kCount; ++j) loaded.values[Program::kLoaded - Program::kScans + i][j] = scanned[v][i][j];
        }
        visit(v, column(p, v), groups[v], loaded, there);
      });
    }
  }

 private:
  // Calls visit(there), which tells the existing elements of a group.
  template <class Visit>
  DEVICE void visit_there(const StitchArgs& p, int v, Visit visit) const {
    if (v == kVectors - 1)
      visit_group<kCount, kTails>(p, column(p, v), visit);
    else
      visit(AllOfGroup{});
  }
  DEVICE void read(const StitchArgs& p, int line, Held (&to)[kVectors]) const {
    UNROLL
    for (int v = 0; v < kVectors; ++v) {
      to[v].read_row(p, line);
      visit_there(p, v, [&](const auto& there) { to[v].read(p, line, column(p, v), there); });
    }
  }
};

// All threads of a block have one row. kResident: the row is in shared memory, where each thread accesses only its own
// groups, so that no barriers are needed; groups that are read for the last time are replaced by the next row's.
// Otherwise the row is read again in each pass. kAhead: groups of a thread that are read at once. kTails: rows end
// within a group.
template <class Program, int kCount, int kLanes, bool kResident, int kAhead, bool kTails>
struct LongRow {
  using Group = VectorizedElements<Program, kCount, true>;
  using Held = typename Program::template Held<kCount>;
  static constexpr int kGroups = 1, kApart = kLanes * kCount;
  static constexpr int kLastPass = Program::kStored ? Program::kStages : Program::kStages - 1;
  static_assert(Program::kReductions == 0, "what is added up over rows has no place");
  static_assert(Program::kScans == 0, "results of scans have no place");
  Held common;  // values common to the whole row
  int next = -1;

  DEVICE LongRow(const StitchArgs& p, int first_line) {
    if constexpr (kResident) {
      DYNAMIC_SHARED(resident);
      for (int at = thread_id() * kCount; at < p.width; at += kApart)
        visit_group<kCount, kTails>(p, at, [&](const auto& there) { Held::fetch(p, resident, first_line, at, there); });
      async_commit();
    }
  }
  DEVICE const Held& of_row() const { return common; }
  DEVICE void load(const StitchArgs& p, int line, int after) {
    common.read_row(p, line);
    next = after;
    if constexpr (kResident) async_wait<0>();
  }
  template <int kPass, class Visit>
  DEVICE void each(const StitchArgs& p, int line, Visit visit) {
    const int rest = kTails ? p.width % kCount : 0, end = p.width - rest;
    for (int at = thread_id() * kCount; at < end; at += kAhead * kApart)
      some<kPass, kAhead>(p, line, at, end, AllOfGroup{}, visit);
    if constexpr (kTails)
      if (end % kApart == thread_id() * kCount) some<kPass, 1>(p, line, end, p.width, BeginOfGroup{rest}, visit);
    if constexpr (kResident && kPass == kLastPass) async_commit();
  }

 private:
  // The group at this column and the kSome - 1 following ones, if they begin before `end`.
  template <int kPass, int kSome, class There, class Visit>
  DEVICE void some(const StitchArgs& p, int line, int at, int end, const There& there, Visit visit) {
    DYNAMIC_SHARED(resident);
    Group groups[kSome];
    Held held[kSome];
    UNROLL
    for (int i = 0; i < kSome; ++i) {
      const int column = at + i * kApart < end ? at + i * kApart : at;
      groups[i].begin(p, column, 0, there);
      held[i] = common;
      if constexpr (kResident)
        held[i].take(p, resident, column);
      else
        held[i].read(p, line, column, there);
    }
    UNROLL
    for (int i = 0; i < kSome; ++i) {
      const int column = at + i * kApart;
      if (column >= end) continue;
      typename Group::Loaded loaded;
      held[i].widen(p, line, column, loaded.values);
      if constexpr (kResident && kPass == kLastPass)
        if (next >= 0) Held::fetch(p, resident, next, column, there);
      visit(0, column, groups[i], loaded, there);
    }
  }
};

// The reductions and scans of a program's rows, stage by stage.
template <class Program, class Row, int kLanes, int kThreads>
struct RowReductions {
  using Scans = RowScans<Program, kLanes, kThreads, Row::kGroups, Row::Group::kChannels>;
  static constexpr int kInWarp = kLanes < kWarp ? kLanes : kWarp, kWarps = kThreads / kWarp;
  static constexpr bool kBeyondWarp = kLanes > kWarp;
  static constexpr int kShared = kBeyondWarp ? 2 * kAtLeastOne<Program::kRowReductions> * kWarps : 1;
  float* const shared;  // two halves used in turns, so that one barrier per turn suffices
  Scans scans;
  int turn = 0;
  float results[kAtLeastOne<Program::kRowReductions>];

  DEVICE RowReductions(float* shared, float* of_scans) : shared(shared), scans{of_scans} {}

  template <int kStage = 0>
  DEVICE void run(const StitchArgs& p, int line, Row& row) {
    if constexpr (kStage < Program::kStages) {
      constexpr int kFirst = Program::stage_begin(kStage), kCount = Program::stage_begin(kStage + 1) - kFirst;
      constexpr int kScan = Program::scan_begin(kStage), kScans = Program::scan_begin(kStage + 1) - kScan;
      float mine[kAtLeastOne<kCount>];
      UNROLL
      for (int i = 0; i < kCount; ++i) mine[i] = nothing(Program::row_kind(kFirst + i));
      if constexpr (kScans > 0) scans.template clear<kScan, kScans>(row.scanned);
      const OfRow<Program, kStage> of_row(p, row.of_row(), results);
      row.template each<kStage>(
          p, line, [&](int v, long long column, const auto& group, const auto& loaded, const auto& there) {
            of_row.visit_near(column, group.kChannels, [&](auto near) {
              UNROLL
              for (int j = 0; j < group.kChannels; ++j) {
                if (!there.has(j)) continue;
                float values[kAtLeastOne<Program::kLoaded>], some[kCount + kScans];
                group.element(loaded, j, values);
                Program::template of_row<kStage, near.value>(p, group.channel[j], values, of_row.values, some);
                UNROLL
                for (int i = 0; i < kCount; ++i) mine[i] = joined(Program::row_kind(kFirst + i), mine[i], some[i]);
                if constexpr (kScans > 0) {
                  UNROLL
                  for (int i = 0; i < kScans; ++i) row.scanned[v][kScan + i][j] = some[kCount + i];
                }
              }
            });
          });
      if constexpr (kCount > 0) combine<kFirst>(mine);
      if constexpr (kScans > 0) scans.template run<kScan, kScans>(row.scanned);
      run<kStage + 1>(p, line, row);
    }
  }

 private:
  // Combines the partial results of the row's threads; all of them get the result.
  template <int kFirst, int kCount>
  DEVICE void combine(float (&mine)[kCount]) {
    UNROLL
    for (int i = 0; i < kCount; ++i) {
      UNROLL
      for (int mask = kInWarp / 2; mask; mask /= 2)
        mine[i] = joined(Program::row_kind(kFirst + i), mine[i], shuffle_xor(mine[i], mask));
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
        for (int w = 1; w < kLanes / kWarp; ++w)
          mine[i] = joined(Program::row_kind(kFirst + i), mine[i], memory[i * kWarps + first + w]);
      }
    }
    UNROLL
    for (int i = 0; i < kCount; ++i) results[kFirst + i] = mine[i];
  }
};

// The rows of a block, kRows at once, of which this thread's is number `place`. If columns are reduced per height, a
// thread's rows are all at one height, and threads with rows at the same height share them.
template <int kRows, bool kHeights>
struct BlockRows {
  int first, step, end;  // rows among those that threads share
  int own;               // this thread's, from `first` on
  int shared = kRows;    // by so many threads of the block that have the same columns
  int height = 0, part;
  bool exists = true;

  DEVICE BlockRows(const StitchArgs& p, int place) : own(place) {
    if constexpr (kHeights) {
      shared = 1 << p.log_at_once;
      own = place & (shared - 1);
      const int group = block_x() / p.image_parts, of_height = block_x() - group * p.image_parts;
      height = (group * kRows + place) >> p.log_at_once;
      exists = height < p.heights;
      if (!exists) height = p.heights - 1;
      first = of_height << p.log_at_once, step = p.image_parts << p.log_at_once, end = p.image_lines;
      part = height * p.image_parts + of_height;
    } else {
      first = block_x() * kRows, step = p.blocks * kRows, end = p.lines;
      part = block_x();
    }
  }
  DEVICE bool has(int at) const { return exists && at + own < end; }
  // All threads must take part in the reductions: past the last row they compute the last row.
  DEVICE int line(const StitchArgs& p, int at) const {
    int row = at + own < end ? at + own : end - 1;
    if constexpr (!kHeights) return row;
    const int before = divide_with_rest(row, p.by_width);
    return (before * p.heights + height) * int(p.by_width.divisor) + row;
  }
};

// Row: one of the two classes above.
template <class Program, class Row, int kLanes, int kThreads>
DEVICE void stitch_rows(const StitchArgs& p) {
  constexpr int kRows = kThreads / kLanes, kCount = Row::Group::kChannels;  // rows that a block computes at once
  using Sums = RowReductions<Program, Row, kLanes, kThreads>;
  SHARED float of_rows[Sums::kShared];
  SHARED float of_scans[Sums::Scans::kShared];
  SHARED float of_columns[Program::kReductions ? kSharedOfReductions<kThreads> : 1];
  const BlockRows<kRows, Program::kHeights> rows(p, thread_id() / kLanes);
  grid_dependency_wait();
  Row row(p, rows.line(p, rows.first));
  Sums sums(of_rows, of_scans);
  Reductions<Program, kCount, kThreads> reductions[Row::kGroups];
  for (int at = rows.first; at < rows.end; at += rows.step) {
    const int line = rows.line(p, at);
    row.load(p, line, at + rows.step < rows.end ? rows.line(p, at + rows.step) : -1);
    sums.run(p, line, row);
    if (!rows.has(at)) continue;
    const OfRow<Program, Program::kStages> of_row(p, row.of_row(), sums.results);
    const auto compute = [&](int v, long long column, const auto& group, const auto& loaded, const auto& there) {
      typename Row::Group::Stored stored;
      of_row.visit_near(column, kCount, [&](auto near) {
        UNROLL
        for (int j = 0; j < kCount; ++j) {
          float reduced[kAtLeastOne<Program::kReductions>];
          group.template compute<near.value>(p, loaded, j, of_row.values, stored, reduced);
          reductions[v].add(j, reduced);
        }
      });
      const long long at = static_cast<long long>(line) * p.width + column;
      Program::template store<0, kCount>(p, at, stored, line, column, there);
    };
    if constexpr (Program::kStored || Program::kReductions) row.template each<Program::kStages>(p, line, compute);
    if constexpr (Program::kStoresRows)
      if (thread_id() % kLanes == 0) row.of_row().store_row(p, line, sums.results);
  }
  if constexpr (Program::kReductions > 0) {
    UNROLL
    for (int v = 0; v < Row::kGroups; ++v)
      reductions[v].store(of_columns, rows.shared, kLanes, rows.own, rows.exists && row.wanted(p, v), p, rows.part,
                          block_x() * Row::kGroups + v, row.column(p, v));
  }
  if constexpr (Program::kStoresChannels)
    for (int i = block_x() * kThreads + thread_id(); i < p.channels; i += p.blocks * kThreads)
      Program::store_channel(p, i, 0);
}

}  // namespace
}  // namespace reformer

// blocks: least number per multiprocessor, or 0. The remaining arguments are the Row.
#define REFORMER_STITCH_ROWS(name, Program, lanes, threads, blocks, ...) \
  KERNEL_OCCUPANCY(threads, blocks) name(reformer::StitchArgs p) {       \
    reformer::grid_dependency_launch();                                  \
    using namespace reformer;                                            \
    stitch_rows<reformer::Program, __VA_ARGS__, lanes, threads>(p);      \
  }
