// Implicit GEMM: convolution as a product of matrices, one of which is read from the image by im2col on the fly.
// implicit_gemm.h has a table of the rows, columns and depth of each direction.
//
// A block computes a tile of the result, step by step along the depth. With NVIDIA GPUs in forward and input_grad, it
// may compute further tiles of the same columns. Copies of the operands into shared memory run some steps ahead, into
// the next tile, while one tile is multiplied and stored. A thread's source addresses are computed once per tile; each
// step adds to them.
//
// Instructions per warp (of eight) on sm_90a (nvcc 13.0; forward, bf16, 128 x 128 by warpgroups): 110 per step, of
// which 4 multiply; 90 where a tile's copies begin; 560 where its sums are stored. Nothing spills.
#include "../device/add_up.h"
#include "../device/grid_dependency.h"
#include "implicit_gemm_operands.h"
#include "implicit_gemm_program.h"
#include "implicit_gemm_store.h"
#include "implicit_gemm_sums.h"

namespace reformer {

// The type in which fp32 is multiplied.
template <class T>
struct Multiplied {
  using type = T;
};
#if defined(REFORMER_MMA)
template <>
struct Multiplied<fp32> {
  using type = tf32;
};
#endif

template <class T_, int kRows_, int kColumns_, int kDown_, int kAcross_, int kStages_>
struct Shape {
  using T = T_;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kDown = kDown_, kAcross = kAcross_;
  static constexpr int kStages = implicit_gemm_stages(kStages_, kWarp);
  static constexpr int kThreads = kDown * kAcross * kWarp;
  static constexpr int kWarpRows = kRows / kDown, kWarpColumns = kColumns / kAcross;
  static constexpr int kDepth = implicit_gemm_step_bytes(kWarp) / int(sizeof(T));
  static constexpr int kParts = implicit_gemm_step_bytes(kWarp) / 32;  // parts of a step, each as deep as a fragment
  static constexpr int kPitch = implicit_gemm_sums_pitch(kColumns);
  static constexpr int kSlabRows = implicit_gemm_slab_rows(kRows, kColumns, kDown, kWarp);
  static constexpr bool kGroups = kHasGroups && are_groups(kWarpRows, kDown, kAcross, kColumns, int(sizeof(T)));
  static constexpr int kOccupancy = kGroups ? implicit_gemm_occupancy(kRows, kColumns, kThreads, true) : 0;
  static constexpr int kOccupancyWithProgram =
      implicit_gemm_occupancy(kRows, kColumns, kThreads, kGroups, kProgramRegisters);
  // At an occupancy of one block, a step is still being multiplied while the block waits for the next step's barrier.
  static constexpr int kLag = kGroups && kOccupancy == 1;
  using Sums =
      typename SumsOf<kGroups, typename Multiplied<T>::type, kWarpRows, kWarpColumns, kAcross, kParts, kLag>::type;
  template <Lines kLines>
  using TileA = OperandTile<typename Multiplied<T>::type, kRows, kDepth, kLines>;
  template <Lines kLines>
  using TileB = OperandTile<typename Multiplied<T>::type, kColumns, kDepth, kLines>;
};

namespace {

// The tile that the block computes.
template <class Shape, bool kClasses>
DEVICE Place place_of(const ImplicitGemmArgs& p) {
  Place place{};
  place.column = block_x();  // adjacent blocks share the rows, which have more bytes to read
  place.row = divide_with_rest(place.column, p.column_tiles) * Shape::kRows;
  place.column *= Shape::kColumns;
  place.group = block_y();
  if (kClasses && p.scattered) {
    place.class_w = divide_with_rest(place.group, p.groups);
    place.class_h = divide_with_rest(place.class_w, p.classes_w);
  }
  place.split = block_z();
  return place;
}

// The steps of a split.
struct Steps {
  int first, count;
};
DEVICE Steps steps_of(int all, int split, const ImplicitGemmArgs& p) {
  if (p.splits == 1) return {0, all};
  const int most = divide(all + p.splits - 1, p.by_splits), first = least(split * most, all);
  return {first, least(all - first, most)};
}

// All steps of a block's tiles: of one tile, or, with kFurther, of `tiles` tiles. begin() is called before the first
// copy of each tile. store() is called after its last step, when copies of the next steps are in flight, and returns
// whether there is another tile.
template <class Shape, bool kFurther, class SourceA, class SourceB, class Begin, class Store>
DEVICE void multiply(SourceA& a, SourceB& b, int tiles, int steps, unsigned char* shared, typename Shape::Sums& sums,
                     Begin begin, Store store) {
  using TileA = typename SourceA::Tile;
  using TileB = typename SourceB::Tile;
  constexpr int kStages = Shape::kStages;
  if constexpr (kAsync) {
    constexpr int kAhead = kStages - 1 - Shape::kLag, kAllA = kStages * TileA::kBytes;
    // Two rings of stages: one of b's tiles and one of a's.
    const int all_b = implicit_gemm_stages_b(steps, kStages) * TileB::kBytes;
    unsigned char* const shared_a = shared + all_b;
    int to_a = 0, to_b = 0, from_a = 0, from_b = 0;
    int left = tiles * steps, next_step = 0;
    const int left_without_b = steps > kStages ? 0 : left - steps;  // all of b's tiles have arrived by then
    if (steps > 0) begin();
    grid_dependency_wait();
    const auto begin_tile = [&] {
      if constexpr (kFurther) {
        if (next_step < steps || left <= 0) return;
        next_step = 0;
        b.rewind(steps);
        begin();
      }
    };
    const auto copy_step = [&] {
      if (left > 0) {
        copy(a, TileA{shared_a + to_a});
        a.advance();
        if (left > left_without_b) {
          copy(b, TileB{shared + to_b});
          b.advance();
        }
        --left;
        if (kFurther) ++next_step;
      }
      async_commit();
      to_a = to_a == kAllA - TileA::kBytes ? 0 : to_a + TileA::kBytes;
      to_b = to_b == all_b - TileB::kBytes ? 0 : to_b + TileB::kBytes;
    };
    NOT_UNROLLED
    for (int step = 0; step < kAhead; ++step) {
      begin_tile();
      copy_step();
    }
    bool further;
    do {
      sums.clear();
      NOT_UNROLLED
      for (int step = 0; step < steps; ++step) {
        begin_tile();
        async_wait<kAhead - 1>();
        sums.publish();
        barrier();  // the step's tiles have arrived, and no thread needs those of the step (or two) before it
        sums.multiply(TileA{shared_a + from_a}, TileB{shared + from_b}, copy_step);
        from_a = from_a == kAllA - TileA::kBytes ? 0 : from_a + TileA::kBytes;
        from_b = from_b == all_b - TileB::kBytes ? 0 : from_b + TileB::kBytes;
      }
      sums.finish();
      further = store();
    } while (kFurther && further);
  } else {
    constexpr int kStage = TileA::kBytes + TileB::kBytes;
    Fetched<SourceA> next_a;
    Fetched<SourceB> next_b;
    sums.clear();
    if (steps > 0) {
      begin();
      next_a.load(a);
      next_b.load(b);
      next_a.store(a, TileA{shared});
      next_b.store(b, TileB{shared + TileA::kBytes});
      barrier();
    }
    for (int step = 0; step < steps; ++step) {
      const int from = step % 2 * kStage, to = kStage - from;
      const bool more = step + 1 < steps;
      if (more) {
        a.advance();
        b.advance();
        next_a.load(a);
        next_b.load(b);
      }
      sums.multiply(TileA{shared + from}, TileB{shared + from + TileA::kBytes}, [] {});
      if (more) {
        next_a.store(a, TileA{shared + to});
        next_b.store(b, TileB{shared + to + TileA::kBytes});
        barrier();
      }
    }
    store();
  }
}

// forward, and input_grad with kTransposed: there the filter's lines run along the outer index.
template <class Shape, bool kPointwise, bool kTransposed, class Epilogue>
DEVICE void correlate(const ImplicitGemmArgs& p, const Epilogue& epilogue) {
  using T = typename Shape::T;
  constexpr int kThreads = Shape::kThreads, kDepth = Shape::kDepth;
  using TileA = typename Shape::template TileA<Lines::kAlongDepth>;
  using TileB = typename Shape::template TileB<kTransposed ? Lines::kAlongOuter : Lines::kAlongDepth>;
  DYNAMIC_SHARED(shared);
  Place place = place_of<Shape, kTransposed>(p);
  const ImplicitGemmAxis& height = p.heights[kTransposed ? place.class_h : 0];
  const ImplicitGemmAxis& width = p.widths[kTransposed ? place.class_w : 0];
  const int rows = p.images * height.count * width.count;
  if (place.row >= rows) return;
  const int taps = height.taps * width.taps, depth = taps * p.depth_per_tap;
  const Steps steps = steps_of((depth + kDepth - 1) / kDepth, place.split, p);
  const int first = steps.first * kDepth;
  const int next_rows = int(p.by_next_rows.divisor);
  const int tiles = divide(rows - place.row + next_rows - 1, p.by_next_rows);

  typename Shape::Sums sums;
  Im2colRows<T, TileA, kThreads, kDepth, !kPointwise> a(p, height.taps, width.taps);
  int copied_row = place.row;
  const auto multiply_by = [&](auto b) {
    const auto begin = [&] {
      a.begin(static_cast<const T*>(p.a) + place.group * p.a_group, height, width, copied_row, rows, first);
      copied_row += next_rows;
    };
    multiply<Shape, kAsync>(a, b, tiles, steps.count, shared, sums, begin, [&] {
      store_sums<Shape>(sums, shared, p, epilogue, place, rows, [&p, &height, &width](int row) {
        if (!kTransposed || !p.scattered) return row;
        int column = row;
        int line = divide_with_rest(column, width.by_count);
        const int number = divide_with_rest(line, height.by_count);
        return (number * p.result_h + height.first + line * p.result_step_h) * p.result_w + width.first +
               column * p.result_step_w;
      });
      place.row += next_rows;
      return place.row < rows;
    });
  };
  const T* filter = static_cast<const T*>(p.b) + place.group * p.b_group;
  if constexpr (!kTransposed)
    multiply_by(Straight<T, TileB, kThreads, kDepth>(filter, place.column, p.columns, p.filter_pitch, first, depth));
  else if constexpr (kPointwise)
    multiply_by(
        Transposed<T, TileB, kThreads, kDepth>(filter, place.column, p.columns, p.filter_pitch, first, p.depth_of_tap));
  else
    multiply_by(FilterTaps<T, TileB, kThreads, kDepth>(p, filter, height, width, place.column, first));
}

template <class Shape, bool kPointwise, class Epilogue>
DEVICE void forward(const ImplicitGemmArgs& p, const Epilogue& epilogue) {
  correlate<Shape, kPointwise, false>(p, epilogue);
}
template <class Shape, bool kPointwise>
DEVICE void forward(const ImplicitGemmArgs& p) {
  forward<Shape, kPointwise>(p, AddBias{p});
}

template <class Shape, bool kPointwise>
DEVICE void input_grad(const ImplicitGemmArgs& p) {
  correlate<Shape, kPointwise, true>(p, AddBias{p});
}

template <class Shape, bool kPointwise>
DEVICE void weight_grad(const ImplicitGemmArgs& p) {
  using T = typename Shape::T;
  constexpr int kThreads = Shape::kThreads, kDepth = Shape::kDepth;
  using TileA = typename Shape::template TileA<Lines::kAlongOuter>;
  using TileB = typename Shape::template TileB<Lines::kAlongOuter>;
  DYNAMIC_SHARED(shared);
  const Place place = place_of<Shape, false>(p);
  const Steps steps = steps_of((p.pixels + kDepth - 1) / kDepth, place.split, p);
  const int first = steps.first * kDepth;

  typename Shape::Sums sums;
  Transposed<T, TileA, kThreads, kDepth> a(static_cast<const T*>(p.a) + place.group * p.a_group, place.row, p.rows,
                                           p.a_pitch, first, p.pixels);
  const T* image = static_cast<const T*>(p.b) + place.group * p.b_group;
  const auto multiply_by = [&](auto b) {
    const auto begin = [] {};
    multiply<Shape, false>(a, b, 1, steps.count, shared, sums, begin, [&] {
      store_sums<Shape>(sums, shared, p, AddBias{p}, place, p.rows, [](int row) { return row; });
      return false;
    });
  };
  if constexpr (kPointwise)
    multiply_by(
        Transposed<T, TileB, kThreads, kDepth>(image, place.column, p.columns, p.source_channels, first, p.pixels));
  else
    multiply_by(Im2colColumns<T, TileB, kThreads, kDepth>(p, image, place.column, first, p.pixels));
}

// Adds up the splits' sums: each of the eight warps adds every eighth split, then the warps' sums are added, in a fixed
// order.
template <class Shape, bool>
DEVICE void finish(const ImplicitGemmFinishArgs& p) {
  using T = typename Shape::T;
  constexpr int kWarps = Shape::kThreads / kWarp;
  SHARED float shared[kWarps][kWarp * 4];
  const int lane = lane_id(), warp = warp_id();
  const long long element = (static_cast<long long>(block_x()) * kWarp + lane) * 4;
  float sums[4] = {};
  grid_dependency_wait();
  if (element < p.numel) add_up(p.partial + element, p.numel, warp, kWarps, p.splits, sums);
  UNROLL
  for (int e = 0; e < 4; ++e) shared[warp][lane + e * kWarp] = sums[e];
  barrier();
  if (warp || element >= p.numel) return;
  for (int other = 1; other < kWarps; ++other) {
    UNROLL
    for (int e = 0; e < 4; ++e) sums[e] += shared[other][lane + e * kWarp];
  }
  if (p.bias) {
    int channel = int(element);
    divide_with_rest(channel, p.channels);
    float bias[4];
    widen<T, 4>(load<T, 4>(static_cast<const T*>(p.bias) + channel), bias);
    UNROLL
    for (int e = 0; e < 4; ++e) sums[e] += bias[e];
  }
  store<T, 4>(static_cast<T*>(p.result) + element, narrow<T, 4>(sums));
}

constexpr bool pointwise = true, general = false;

}  // namespace
}  // namespace reformer

#define REFORMER_SHAPE(T, rows, columns, down, across, stages) \
  reformer::Shape<reformer::T, rows, columns, down, across, stages>
// A kernel that runs a program. The program's text follows this file, and no other kernel is compiled.
#ifdef REFORMER_TEXT_FOLLOWS
#define REFORMER_WITH_PROGRAM(name, Program, what, T, kind, rows, columns, down, across, stages)    \
  KERNEL_OCCUPANCY(down * across * reformer::kWarp,                                                 \
                   (REFORMER_SHAPE(T, rows, columns, down, across, stages)::kOccupancyWithProgram)) \
  name(reformer::WithProgram<reformer::ImplicitGemmArgs> args) {                                    \
    reformer::grid_dependency_launch();                                                             \
    reformer::what<REFORMER_SHAPE(T, rows, columns, down, across, stages), reformer::kind>(         \
        args.conv, reformer::RunsProgram<reformer::Program>{args.program});                         \
  }
#else
#define X(what, T, kind, rows, columns, down, across, stages)                                     \
  KERNEL_OCCUPANCY(down * across * reformer::kWarp,                                               \
                   (REFORMER_SHAPE(T, rows, columns, down, across, stages)::kOccupancy))          \
  implicit_gemm_##what##_##T##_##kind##_##rows##x##columns##_##down##x##across##_##stages(        \
      reformer::ImplicitGemmArgsOf_##what args) {                                                 \
    reformer::grid_dependency_launch();                                                           \
    reformer::what<REFORMER_SHAPE(T, rows, columns, down, across, stages), reformer::kind>(args); \
  }
// Entries with wgmma, and those for GPUs without it.
#if defined(REFORMER_WGMMA_GROUPS)
#define X_GROUPS(...) X(__VA_ARGS__)
#define X_WARPS(...)
#else
#define X_GROUPS(...)
#define X_WARPS(...) X(__VA_ARGS__)
#endif
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "implicit_gemm.inc"
#endif
#endif
