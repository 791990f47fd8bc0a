// Products of matrices for convolutions of 1 x 1, by what is Hopper's own: the bulk copy engine fills a ring of tiles
// in shared memory, warpgroups multiply them (wgmma), and the engine stores the result.
//
// What bounds most of these problems is reading tiles from the second-level cache. So neighbouring blocks share: two of
// a cluster that have the same rows, or the same columns, load half of that operand each, for both. And while a block
// stores a tile, the next one's copies are under way. Source of the arrangement: the Hopper kernels of CUTLASS.
#include "../device/cluster.h"
#include "../device/mma.h"
#include "../device/overlap.h"
#include "../device/tma.h"
#include "tma_gemm.h"

#if defined(REFORMER_TMA)
namespace reformer {
namespace {

enum class What { forward, input_grad, weight_grad, forward_nchw, input_grad_nchw, weight_grad_nchw };

template <What kWhat, class T_, int kRows_, int kColumns_, int kStages_>
struct Shape {
  using T = T_;
  static constexpr bool kNchw = kWhat >= What::forward_nchw;
  static constexpr bool kForward = kWhat == What::forward || kWhat == What::forward_nchw;
  static constexpr bool kWeightGrad = kWhat == What::weight_grad || kWhat == What::weight_grad_nchw;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kStages = kStages_;
  static constexpr int kGroups = kRows / 64;
  static constexpr bool kGivesRegisters = tma_gemm_gives_registers(kColumns);
  static constexpr bool kDepthA = kWeightGrad == kNchw, kDepthB = kForward || (kWeightGrad && kNchw);
  using TileA = OperandTile<T, kRows, kTmaDepth, kDepthA ? Lines::kAlongDepth : Lines::kAlongOuter>;
  using TileB = OperandTile<T, kColumns, kTmaDepth, kDepthB ? Lines::kAlongDepth : Lines::kAlongOuter>;
};

// The ring of tiles, and the barriers of each: it is full, it is empty.
template <class Shape>
struct Ring {
  static constexpr int kStages = Shape::kStages;
  static constexpr int kBytesA = Shape::TileA::kBytes, kBytesB = Shape::TileB::kBytes;
  static constexpr int kStores = kStages * (kBytesA + kBytesB);
  static constexpr int kBarriers = kStores + Shape::kGroups * 2 * kTmaStoreBytes;
  unsigned char* memory;

  DEVICE typename Shape::TileA a(int stage) const { return {memory + stage * kBytesA}; }
  DEVICE typename Shape::TileB b(int stage) const { return {memory + kStages * kBytesA + stage * kBytesB}; }
  DEVICE unsigned full(int stage) const { return tma::shared_address(memory + kBarriers + stage * 8); }
  DEVICE unsigned empty(int stage) const { return full(kStages + stage); }
  DEVICE unsigned char* stores(int group) const { return memory + kStores + group * 2 * kTmaStoreBytes; }
};

// A place in the ring, and how often it was come by.
template <int kStages>
struct Turn {
  int stage = 0, parity = 0;
  DEVICE void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// Copies a tile. kPictures: of a tensor in NCHW, which has matrices of its own for each picture. half: of which block
// of the cluster, if both have half of its lines copied for both; else -1.
template <bool kPictures, class Tile>
DEVICE void load_tile(const TensorMap& map, const Tile& to, unsigned barrier, int outer, int depth, int picture,
                      int half) {
  constexpr int kPanels = Tile::kChunks / 8;
  const int lines = half > 0 ? Tile::kLineCount / 2 : 0;
  UNROLL
  for (int panel = 0; panel < kPanels; ++panel) {
    const unsigned at = tma::shared_address(to.memory) + panel * Tile::kPanelBytes + lines * 128;
    const int element = (Tile::kAlongDepth ? depth : outer) + panel * tma::kBoxElements;
    const int line = (Tile::kAlongDepth ? outer : depth) + lines;
    if constexpr (kPictures) {
      if (half < 0)
        tma::load(map, at, barrier, element, line, picture, 0);
      else
        tma::load_for_both(map, at, barrier, element, line, picture, 0);
    } else {
      if (half < 0)
        tma::load(map, at, barrier, element, line);
      else
        tma::load_for_both(map, at, barrier, element, line);
    }
  }
}

// The block's tiles of rows: the first row, and, of pixels in NCHW, the picture.
template <class Shape, class Function>
DEVICE void for_each_tile(const TmaGemmArgs& p, int first, int rank, Function function) {
  for (int next = first; next < p.row_tiles; next += p.row_blocks) {
    int tile = p.shared == TmaShared::kColumns ? next * 2 + rank : next;
    int picture = 0;
    if constexpr (Shape::kNchw && !Shape::kWeightGrad) picture = divide_with_rest(tile, p.by_picture);
    function(tile * Shape::kRows, picture);
  }
}

// Rounds and stores 64 rows, from `row` on, of the sums that mma holds in pairs, as many columns at once as a box has,
// by one half of the group's memory and the other in turns. In NCHW rows are a picture's pixels, which lie in lines.
template <class Shape, class T, int kColumns>
DEVICE void store_result(const TmaGemmArgs& p, float (&sums)[kColumns / 8][4], unsigned char* stores, int& half,
                         int group, int row, int column, int picture) {
  constexpr bool kTransposed = Shape::kNchw && !Shape::kWeightGrad;
  const int lane = lane_id(), first_row = warp_id() % 4 * 16;
  const bool starts = thread_id() % 128 == 0;
  if (p.bias) {
    const T* bias = static_cast<const T*>(p.bias);
    UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
      const int at = column + j * 8 + lane % 4 * 2;
      if (at >= p.columns) break;
      float two[2];
      widen<T, 2>(load<T, 2>(bias + at), two);
      UNROLL
      for (int e = 0; e < 4; ++e) sums[j][e] += two[e % 2];
    }
  }
  UNROLL
  for (int box = 0; box < kColumns / 64; ++box) {
    if (column + box * 64 >= p.columns) break;
    unsigned char* const to = stores + half * kTmaStoreBytes;
    half ^= 1;
    if (starts) tma::wait_for_reads<1>();  // the store before the last one has read this half
    tma::group_barrier(1 + group, 128);
    UNROLL
    for (int j = box * 8; j < box * 8 + 8; j += 2) {
      // Of the four matrices of 8 x 8 two have the first rows' sums and two the next ones', of two times 8 columns.
      const int line = kTransposed ? (j % 8 + lane / 16) * 8 + lane % 8 : first_row + lane % 16;
      const int chunk = kTransposed ? first_row / 8 + lane / 8 % 2 : j % 8 + lane / 16;
      tma::store_matrices<kTransposed>(tma::shared_address(to + line * 128 + (chunk ^ line % 8) * 16),
                                       narrow_pair<T>(sums[j][0], sums[j][1]), narrow_pair<T>(sums[j][2], sums[j][3]),
                                       narrow_pair<T>(sums[j + 1][0], sums[j + 1][1]),
                                       narrow_pair<T>(sums[j + 1][2], sums[j + 1][3]));
    }
    wgmma::publish();
    tma::group_barrier(1 + group, 128);
    if (!starts) continue;
    if constexpr (kTransposed)
      tma::store(p.result, tma::shared_address(to), row, column + box * 64, picture, 0);
    else
      tma::store(p.result, tma::shared_address(to), column + box * 64, row);
  }
}

// The same as they are, where others have to be added.
template <int kColumns>
DEVICE void store_partial(const TmaGemmArgs& p, const float (&sums)[kColumns / 8][4], int row, int column) {
  const int lane = lane_id();
  row += warp_id() % 4 * 16 + lane / 4;
  float* const to = p.partial + (static_cast<long long>(block_y()) * p.rows + row) * p.columns;
  UNROLL
  for (int j = 0; j < kColumns / 8; ++j) {
    const int at = column + j * 8 + lane % 4 * 2;
    if (at >= p.columns) break;
    UNROLL
    for (int e = 0; e < 4; e += 2) {
      const float two[2] = {sums[j][e], sums[j][e + 1]};
      if (row + e * 4 < p.rows) store<fp32, 2>(to + e * 4 * p.columns + at, narrow<fp32, 2>(two));
    }
  }
}

template <What kWhat, class T, int kRows, int kColumns, int kStages>
DEVICE void multiply(const TmaGemmArgs& p) {
  using Shape = reformer::Shape<kWhat, T, kRows, kColumns, kStages>;
  DYNAMIC_SHARED(memory);
  const Ring<Shape> ring{memory};
  const int rank = block_z(), group = wgmma::group_id();
  const bool pair = p.shared != TmaShared::kNothing;
  int column = block_x();
  const int first = divide_with_rest(column, p.column_tiles);
  if (p.shared == TmaShared::kRows) column = column * 2 + rank;
  column *= kColumns;
  const int first_step = block_y() * p.steps_each;
  const int steps = p.steps - first_step < p.steps_each ? p.steps - first_step : p.steps_each;

  if (thread_id() == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      tma::init_barrier(ring.full(stage), 1);
      tma::init_barrier(ring.empty(stage), Shape::kGroups * 4 * (pair ? 2 : 1));
    }
    tma::publish_barriers();
  }
  if (thread_id() == Shape::kGroups * 128) {
    tma::prefetch(p.a);
    tma::prefetch(p.b);
    tma::prefetch(p.result);
  }
  if (pair)
    cluster_meet();
  else
    barrier();
  wait_for_earlier();

  Turn<kStages> turn;
  if (group == Shape::kGroups) {
    if constexpr (Shape::kGivesRegisters) wgmma::give_registers<40>();
    if (thread_id() == Shape::kGroups * 128) {
      bool with_b = true;
      for_each_tile<Shape>(p, first, rank, [&](int row, int picture) {
        for (int step = 0; step < steps; ++step) {
          int depth = first_step + step;
          if constexpr (Shape::kNchw && Shape::kWeightGrad) picture = divide_with_rest(depth, p.by_picture);
          depth *= kTmaDepth;
          const unsigned full = ring.full(turn.stage);
          tma::wait(ring.empty(turn.stage), turn.parity ^ 1);
          tma::arrive_expecting(full, ring.kBytesA + (with_b ? ring.kBytesB : 0));
          load_tile<Shape::kNchw>(p.a, ring.a(turn.stage), full, row, depth, picture,
                                  p.shared == TmaShared::kRows ? rank : -1);
          if (with_b)
            load_tile<Shape::kNchw && Shape::kWeightGrad>(p.b, ring.b(p.kept ? step : turn.stage), full, column, depth,
                                                          picture, p.shared == TmaShared::kColumns ? rank : -1);
          turn.advance();
        }
        with_b = !p.kept;
      });
    }
  } else {
    if constexpr (Shape::kGivesRegisters) wgmma::take_registers<232>();
    GroupTile<T, kColumns> sums;
    int half = 0;
    // This warp has read the stage's tiles.
    const auto release = [&](int stage) {
      if (pair) {
        if (lane_id() < 2) tma::arrive_there(ring.empty(stage), lane_id());
      } else if (lane_id() == 0) {
        tma::arrive_there(ring.empty(stage), 0);
      }
    };
    for_each_tile<Shape>(p, first, rank, [&](int row, int picture) {
      sums.clear();
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        tma::wait(ring.full(turn.stage), turn.parity);
        sums.start(ring.a(turn.stage), group * 64, ring.b(p.kept ? step : turn.stage));
        if (step) {
          wgmma::wait<1>();
          release(before);
        }
        before = turn.stage;
        turn.advance();
      }
      sums.finish();
      release(before);
      if (p.partial)
        store_partial<kColumns>(p, sums.sums(), row + group * 64, column);
      else
        store_result<Shape, T, kColumns>(p, sums.sums(), ring.stores(group), half, group, row + group * 64, column,
                                         picture);
    });
    if (thread_id() % 128 == 0) tma::wait_for_reads<0>();
  }
  if (pair) cluster_meet();  // nobody sends anything to a block that has ended
}

constexpr What forward = What::forward, input_grad = What::input_grad, weight_grad = What::weight_grad;
constexpr What forward_nchw = What::forward_nchw, input_grad_nchw = What::input_grad_nchw;
constexpr What weight_grad_nchw = What::weight_grad_nchw;

}  // namespace
}  // namespace reformer

#define X(what, T, rows, columns, stages)                                                                     \
  KERNEL(reformer::tma_gemm_threads(rows, columns))                                                           \
  tma_gemm_##what##_##T##_##rows##x##columns##_##stages(const __grid_constant__ reformer::TmaGemmArgs args) { \
    reformer::let_next_begin();                                                                               \
    reformer::multiply<reformer::what, reformer::T, rows, columns, stages>(args);                             \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "tma_gemm.inc"
#endif
#endif
