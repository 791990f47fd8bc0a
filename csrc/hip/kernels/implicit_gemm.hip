// Convolution as a product of matrices, of which one is gathered from the picture while it is multiplied.
// implicit_gemm.h has a table of what rows, columns and depth are in each direction.
//
// A block computes a tile of the result, step by step along the depth. Copies of the operands into shared memory run
// some steps ahead. Where a thread copies from is worked out once; a step adds to it.
#include "../device/async_copy.h"
#include "../device/cluster.h"
#include "../device/mma.h"
#include "implicit_gemm.h"

namespace reformer {
// What fp32 is multiplied as.
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

// The sums of a block, kDown x kAcross warps that have kRows x kColumns each. A step's tiles are multiplied in kParts;
// meanwhile() is what else there is to do.
template <class T, int kRows, int kColumns, int kAcross, int kParts>
class WarpSums {
  using Tile = WarpTile<T, kRows, kColumns>;
  Tile tile_;
  const int column_ = warp_id() % kAcross * kColumns;

 public:
  const int row = warp_id() / kAcross * kRows;

  DEVICE WarpSums() { tile_.clear(); }
  // After waiting for own copies, and before the barrier.
  DEVICE static void publish() {}
  // Fragments of the next part are loaded before one is multiplied.
  template <class TileA, class TileB, class Function>
  DEVICE void multiply(const TileA& a, const TileB& b, Function meanwhile) {
    typename Tile::A fragments_a[2];
    typename Tile::B fragments_b[2];
    fragments_a[0] = Tile::load_a(a, row, 0);
    fragments_b[0] = Tile::load_b(b, column_, 0);
    meanwhile();
    UNROLL
    for (int i = 0; i < kParts; ++i) {
      if (i + 1 < kParts) {
        fragments_a[(i + 1) & 1] = Tile::load_a(a, row, (i + 1) * Tile::kDepth);
        fragments_b[(i + 1) & 1] = Tile::load_b(b, column_, (i + 1) * Tile::kDepth);
      }
      tile_.multiply(fragments_a[i & 1], fragments_b[i & 1]);
    }
  }
  // The warp's sums, from its first row on.
  DEVICE void store(float* to, int pitch) const { tile_.store(to + column_, pitch); }
};

// Warps that have 16 rows and all columns are warpgroups where there are instructions for these.
constexpr bool are_groups(int warp_rows, int down, int across, int columns, int bytes) {
  return warp_rows == 16 && down % 4 == 0 && across == 1 && columns % 64 == 0 && bytes == 2;
}
template <bool kGroups, class T, int kRows, int kColumns, int kAcross, int kParts>
struct SumsOf {
  using type = WarpSums<T, kRows, kColumns, kAcross, kParts>;
};
#if defined(REFORMER_WGMMA_GROUPS)
constexpr bool kHasGroups = true;
template <class T, int kColumns>
class GroupSums {
  GroupTile<T, kColumns> tile_;
  const int group_ = wgmma::group_id();

 public:
  const int row = warp_id() * 16;

  DEVICE GroupSums() { tile_.clear(); }
  DEVICE static void publish() { wgmma::publish(); }
  template <class TileA, class TileB, class Function>
  DEVICE void multiply(const TileA& a, const TileB& b, Function meanwhile) {
    tile_.start(a, group_ * 64, b);
    meanwhile();
    wgmma::wait();
  }
  DEVICE void store(float* to, int pitch) const { tile_.store(to, pitch); }
};
template <class T, int kRows, int kColumns, int kAcross, int kParts>
struct SumsOf<true, T, kRows, kColumns, kAcross, kParts> {
  using type = GroupSums<T, kColumns>;
};
#else
constexpr bool kHasGroups = false;
#endif

template <class T_, int kRows_, int kColumns_, int kDown_, int kAcross_, int kStages_>
struct Shape {
  using T = T_;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kDown = kDown_, kAcross = kAcross_;
  static constexpr int kStages = implicit_gemm_stages(kStages_, kWarp);
  static constexpr int kThreads = kDown * kAcross * kWarp;
  static constexpr int kWarpRows = kRows / kDown, kWarpColumns = kColumns / kAcross;
  static constexpr int kDepth = implicit_gemm_step_bytes(kWarp) / int(sizeof(T));
  static constexpr int kParts = implicit_gemm_step_bytes(kWarp) / 32;  // of a step, as long as a fragment
  static constexpr int kPitch = implicit_gemm_sums_pitch(kColumns);
  static constexpr int kSlabRows = implicit_gemm_slab_rows(kRows, kColumns, kDown, kWarp);
  static constexpr bool kGroups = kHasGroups && are_groups(kWarpRows, kDown, kAcross, kColumns, int(sizeof(T)));
  using Sums = typename SumsOf<kGroups, typename Multiplied<T>::type, kWarpRows, kWarpColumns, kAcross, kParts>::type;
  template <Lines kLines>
  using TileA = OperandTile<typename Multiplied<T>::type, kRows, kDepth, kLines>;
  template <Lines kLines>
  using TileB = OperandTile<typename Multiplied<T>::type, kColumns, kDepth, kLines>;
};

namespace {

#if defined(REFORMER_MMA)
constexpr bool kAsync = true;
#else
constexpr bool kAsync = false;
#endif

// What a block computes.
struct Place {
  int row, column, group, split;
  int class_h, class_w;
};
template <class Shape, bool kClasses>
DEVICE Place place_of(const ImplicitGemmArgs& p) {
  Place place{};
  place.column = block_x();  // neighbours share their rows, of which there is more to read
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

// The steps that a split takes.
struct Steps {
  int first, count;
};
DEVICE Steps steps_of(int all, int split, const ImplicitGemmArgs& p) {
  if (p.splits == 1) return {0, all};
  const int most = divide(all + p.splits - 1, p.by_splits), first = split * most;
  return {first, all - first < most ? all - first : most};
}

// from + offset, by one instruction and without a register for the offset's sign.
template <class T>
DEVICE const T* at(const T* from, int offset) {
#if defined(REFORMER_NVIDIA)
  const T* sum;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(offset), "n"(int(sizeof(T))), "l"(from));
  return sum;
#else
  return from + offset;
#endif
}

DEVICE int least(int a, int b) { return a < b ? a : b; }

// The part of a tile that one thread copies: the same chunk of kCount lines. The sources below derive from it, and say
// where line l of the part is to be read, and whether it is, or zeros are to be written.
template <class Tile_, int kThreads>
struct Part {
  using Tile = Tile_;
  static constexpr int kApart = kThreads / Tile::kChunks;
  static constexpr int kCount = (Tile::kLineCount + kApart - 1) / kApart;
  static constexpr int kElements = Tile::kChunkElements;
  static_assert(kThreads % Tile::kChunks == 0);

  DEVICE static int chunk() { return thread_id() % Tile::kChunks; }
  DEVICE static int line(int l) { return thread_id() / Tile::kChunks + l * kApart; }
  DEVICE static bool exists(int l) { return Tile::kLineCount % kApart == 0 || line(l) < Tile::kLineCount; }
};

template <class Source>
DEVICE void copy(const Source& source, const typename Source::Tile& to) {
  UNROLL
  for (int l = 0; l < Source::kCount; ++l)
    if (source.exists(l)) async_copy<16>(to.chunk(source.line(l), source.chunk()), source.address(l), source.valid(l));
}

// The same by way of registers.
template <class Source>
struct Fetched {
  Words<16> words[Source::kCount];

  DEVICE void load(const Source& source) {
    UNROLL
    for (int l = 0; l < Source::kCount; ++l) {
      words[l] = Words<16>{};
      if (source.exists(l) && source.valid(l)) words[l] = *reinterpret_cast<const Words<16>*>(source.address(l));
    }
  }
  DEVICE void store(const Source& source, const typename Source::Tile& to) const {
    UNROLL
    for (int l = 0; l < Source::kCount; ++l)
      if (source.exists(l)) *reinterpret_cast<Words<16>*>(to.chunk(source.line(l), source.chunk())) = words[l];
  }
};

// A matrix whose lines lie along the depth. Lines past the last one repeat it: what comes of them is not stored.
template <class T, class Tile, int kThreads, int kDepth>
struct Straight : Part<Tile, kThreads> {
  using Mine = Part<Tile, kThreads>;
  const T* from;
  int depth, offsets[Mine::kCount];

  // depth: that of the thread's chunk in the first step, less what there is in all.
  DEVICE Straight(const T* matrix, int first_line, int lines, int pitch, int first_depth, int all_depth) {
    depth = first_depth + Mine::chunk() * Mine::kElements;
    from = matrix + depth;
    depth -= all_depth;
    UNROLL
    for (int l = 0; l < Mine::kCount; ++l) offsets[l] = least(first_line + Mine::line(l), lines - 1) * pitch;
  }
  DEVICE const T* address(int l) const { return at(from, offsets[l]); }
  DEVICE bool valid(int) const { return depth < 0; }
  DEVICE void advance() {
    from += kDepth;
    depth += kDepth;
  }
};

// Pixels, one a line, and the source's channels at each of their taps: the depth. With kTaps false there is one tap,
// inside of the picture.
template <class T, class Tile, int kThreads, int kDepth, bool kTaps>
struct Gathered : Part<Tile, kThreads> {
  using Mine = Part<Tile, kThreads>;
  const ImplicitGemmArgs& p;
  const int taps_h, taps_w;
  const T* from;  // of this chunk at this tap, less the pixel's offset
  int depth;      // of this chunk in this tap
  int offsets[Mine::kCount];
  int rows[Mine::kCount], columns[Mine::kCount];  // of the source, at tap 0
  int tap_h = 0, tap_w = 0;
  unsigned inside = ~0u;  // bit l: this tap of line l is

  DEVICE Gathered(const ImplicitGemmArgs& args, const T* picture, const ImplicitGemmAxis& height,
                  const ImplicitGemmAxis& width, int first_row, int all_rows, int first_depth)
      : p(args), taps_h(height.taps), taps_w(width.taps) {
    UNROLL
    for (int l = 0; l < Mine::kCount; ++l) {
      int pixel = least(first_row + Mine::line(l), all_rows - 1);
      if (kTaps || !p.same_pixels) {
        int column = pixel;
        int row = divide_with_rest(column, width.by_count);
        const int number = divide_with_rest(row, height.by_count);
        row = row * p.source_step_h + height.origin;
        column = column * p.source_step_w + width.origin;
        pixel = (number * p.source_h + row) * p.source_w + column;
        if constexpr (kTaps) rows[l] = row, columns[l] = column;
      }
      offsets[l] = pixel * p.source_channels;
    }
    depth = first_depth + Mine::chunk() * Mine::kElements;
    from = picture;
    if constexpr (kTaps) {
      tap_w = divide_with_rest(depth, p.by_depth_per_tap);
      tap_h = divide_with_rest(tap_w, width.by_taps);
      from += (tap_h * p.tap_step_h * p.source_w + tap_w * p.tap_step_w) * p.source_channels;
      look();
    }
    from += depth;
  }
  DEVICE void look() {
    const int h = tap_h * p.tap_step_h, w = tap_w * p.tap_step_w;
    inside = 0;
    if (tap_h >= taps_h) return;
    UNROLL
    for (int l = 0; l < Mine::kCount; ++l)
      if (unsigned(rows[l] + h) < unsigned(p.source_h) && unsigned(columns[l] + w) < unsigned(p.source_w))
        inside |= 1u << l;
  }
  DEVICE const T* address(int l) const { return at(from, offsets[l]); }
  DEVICE bool valid(int l) const { return depth < p.depth_of_tap && (!kTaps || (inside >> l & 1)); }
  DEVICE void advance() {
    depth += kDepth;
    from += kDepth;
    if constexpr (kTaps) {
      if (depth < p.depth_per_tap) return;
      do {
        depth -= p.depth_per_tap;
        int pixels = p.tap_step_w;
        if (++tap_w == taps_w) {
          tap_w = 0;
          ++tap_h;
          pixels += p.tap_step_h * p.source_w - p.tap_step_w * taps_w;
        }
        from += pixels * p.source_channels - p.depth_per_tap;
      } while (depth >= p.depth_per_tap);
      look();
    }
  }
};

// A matrix whose lines are the depth. Chunks past the last one repeat it.
template <class T, class Tile, int kThreads, int kDepth>
struct Transposed : Part<Tile, kThreads> {
  using Mine = Part<Tile, kThreads>;
  const T* from;
  const int pitch, end;  // of the depth, of a tap
  int depth;             // of line 0

  DEVICE Transposed(const T* matrix, int first_outer, int outers, int line_pitch, int first_depth, int last_depth)
      : pitch(line_pitch), end(last_depth) {
    depth = first_depth + Mine::line(0);
    from = matrix + least(first_outer + Mine::chunk() * Mine::kElements, outers - Mine::kElements) +
           static_cast<long long>(depth) * pitch;
  }
  DEVICE const T* address(int l) const { return at(from, l * Mine::kApart * pitch); }
  DEVICE bool valid(int l) const { return depth + l * Mine::kApart < end; }
  DEVICE void advance() {
    from += kDepth * pitch;
    depth += kDepth;
  }
};

// The filter, transposed: lines are the k at each of a class's taps.
template <class T, class Tile, int kThreads, int kDepth>
struct FilterTaps : Transposed<T, Tile, kThreads, kDepth> {
  using Lined = Transposed<T, Tile, kThreads, kDepth>;
  const ImplicitGemmArgs& p;
  const int taps_w;
  int tap_w;

  DEVICE FilterTaps(const ImplicitGemmArgs& args, const T* filter, const ImplicitGemmAxis& height,
                    const ImplicitGemmAxis& width, int first_column, int first_depth)
      : Lined(filter, first_column, args.columns, args.filter_pitch, 0, args.depth_of_tap),
        p(args),
        taps_w(width.taps) {
    tap_w = divide_with_rest(first_depth, p.by_depth_per_tap);
    const int tap_h = divide_with_rest(tap_w, width.by_taps);
    this->depth += first_depth;
    this->from += first_depth * p.filter_pitch + height.first_tap * p.filter_tap_h + tap_h * p.filter_pitch_h +
                  width.first_tap * p.filter_tap_w + tap_w * p.filter_pitch_w;
  }
  DEVICE void advance() {
    Lined::advance();
    if (this->depth < p.depth_per_tap) return;  // for all threads: it is a whole number of steps
    this->depth -= p.depth_per_tap;
    int tap = p.filter_pitch_w;
    if (++tap_w == taps_w) {
      tap_w = 0;
      tap += p.filter_pitch_h - p.filter_pitch_w * taps_w;
    }
    this->from += tap - p.depth_per_tap * p.filter_pitch;
  }
};

// The picture at the filter's taps: columns are taps and channels, lines are the result's pixels.
template <class T, class Tile, int kThreads, int kDepth>
struct GatheredColumns : Part<Tile, kThreads> {
  using Mine = Part<Tile, kThreads>;
  const ImplicitGemmArgs& p;
  const T* from;
  const int end;
  int depth, last_row, last_column;  // of the source: those of the last pixel's tap, plus a stride
  int rows[Mine::kCount], columns[Mine::kCount], offsets[Mine::kCount];

  DEVICE GatheredColumns(const ImplicitGemmArgs& args, const T* picture, int first_column, int first_depth,
                         int last_depth)
      : p(args), end(last_depth) {
    int channel = least(first_column + Mine::chunk() * Mine::kElements, p.columns - Mine::kElements);
    int tap_w = divide_with_rest(channel, p.by_channels);
    const int tap_h = divide_with_rest(tap_w, p.by_filter_w);
    const int top = tap_h * p.dilation_h - p.pad_h, left = tap_w * p.dilation_w - p.pad_w;
    last_row = top + p.out_h * p.stride_h;
    last_column = left + p.out_w * p.stride_w;
    from = picture + channel;
    depth = first_depth + Mine::line(0);
    UNROLL
    for (int l = 0; l < Mine::kCount; ++l) {
      int column = depth + l * Mine::kApart;
      int row = divide_with_rest(column, p.by_out_w);
      const int number = divide_with_rest(row, p.by_out_h);
      rows[l] = row * p.stride_h + top;
      columns[l] = column * p.stride_w + left;
      offsets[l] = ((number * p.source_h + rows[l]) * p.source_w + columns[l]) * p.source_channels;
    }
  }
  DEVICE const T* address(int l) const { return at(from, offsets[l]); }
  DEVICE bool valid(int l) const {
    return unsigned(rows[l]) < unsigned(p.source_h) && unsigned(columns[l]) < unsigned(p.source_w) &&
           depth + l * Mine::kApart < end;
  }
  DEVICE void advance() {
    depth += kDepth;
    UNROLL
    for (int l = 0; l < Mine::kCount; ++l) {
      rows[l] += p.step_h;
      columns[l] += p.step_w;
      offsets[l] += p.step_offset;
      if (columns[l] >= last_column) {
        columns[l] -= p.out_w * p.stride_w;
        rows[l] += p.stride_h;
        offsets[l] += p.line_offset;
      }
      if (rows[l] >= last_row) {
        rows[l] -= p.out_h * p.stride_h;
        offsets[l] += p.picture_offset;
      }
    }
  }
};

// All steps; shared memory is the caller's again after it.
template <class Shape, class SourceA, class SourceB>
DEVICE void multiply(SourceA& a, SourceB& b, int steps, unsigned char* shared, typename Shape::Sums& sums) {
  using TileA = typename SourceA::Tile;
  using TileB = typename SourceB::Tile;
  constexpr int kStage = TileA::kBytes + TileB::kBytes, kAll = kStage * Shape::kStages;
  if constexpr (kAsync) {
    constexpr int kAhead = Shape::kStages - 1;
    int to = 0, from = 0;
    NOT_UNROLLED
    for (int step = 0; step < kAhead; ++step) {
      if (step < steps) {
        copy(a, TileA{shared + to});
        copy(b, TileB{shared + to + TileA::kBytes});
        a.advance();
        b.advance();
      }
      async_commit();
      to += kStage;
    }
    NOT_UNROLLED
    for (int step = 0; step < steps; ++step) {
      async_wait<kAhead - 1>();
      sums.publish();
      barrier();  // that step's tiles are there, and nobody needs those of the step before
      sums.multiply(TileA{shared + from}, TileB{shared + from + TileA::kBytes}, [&] {
        if (step + kAhead < steps) {
          copy(a, TileA{shared + to});
          copy(b, TileB{shared + to + TileA::kBytes});
          a.advance();
          b.advance();
        }
        async_commit();
      });
      from = from == kAll - kStage ? 0 : from + kStage;
      to = to == kAll - kStage ? 0 : to + kStage;
    }
  } else {
    Fetched<SourceA> next_a;
    Fetched<SourceB> next_b;
    if (steps > 0) {
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
  }
  barrier();
}

// What happens to sums before they are rounded and stored: of kElements neighbouring columns, always the same of a
// thread. Programs that are fused into the convolution take this one's place.
template <class T, int kElements>
struct AddBias {
  float bias[kElements] = {};

  // channel: of the result, the first of kElements that are there.
  DEVICE AddBias(const ImplicitGemmArgs& p, int channel) {
    if (p.bias) widen<T, kElements>(load<T, kElements>(static_cast<const T*>(p.bias) + channel), bias);
  }
  // offset: of the first of the values, in the result.
  DEVICE void operator()(long long offset, float (&values)[kElements]) const {
    UNROLL
    for (int e = 0; e < kElements; ++e) values[e] += bias[e];
  }
};

// Stores the block's sums, by way of shared memory, so that a thread has neighbours to store. pixel_of(row) is the
// result's line that a row is.
template <class Shape, template <class, int> class Epilogue, class PixelOf>
DEVICE void store_sums(const typename Shape::Sums& sums, unsigned char* shared, const ImplicitGemmArgs& p,
                       const Place& place, int rows, PixelOf pixel_of) {
  using T = typename Shape::T;
  constexpr int kElements = 16 / int(sizeof(T)), kAcross = Shape::kColumns / kElements;
  constexpr int kPitch = Shape::kPitch, kSlab = Shape::kSlabRows;
  static_assert(Shape::kThreads % kAcross == 0 && kSlab % Shape::kWarpRows == 0);
  float* staged = reinterpret_cast<float*>(shared);
  const int element = thread_id() % kAcross * kElements, column = place.column + element;
  const bool wanted = column < p.columns;
  const Epilogue<T, kElements> epilogue(p, place.group * p.columns + (wanted ? column : 0));
  UNROLL
  for (int slab = 0; slab < Shape::kRows; slab += kSlab) {
    if (slab) barrier();
    if (sums.row / kSlab * kSlab == slab) sums.store(staged + (sums.row - slab) * kPitch, kPitch);
    barrier();
    // Of a cluster, whose blocks are neighbouring splits, each adds up all blocks' sums for its share of the rows.
    const bool together = kClusters && p.log_cluster;
    const int share = kSlab >> p.log_cluster, first = together ? (block_z() & ((1 << p.log_cluster) - 1)) * share : 0;
    if (together) cluster_barrier();
    for (int i = thread_id() / kAcross; i < share; i += Shape::kThreads / kAcross) {
      const int row = place.row + slab + first + i;
      if (row >= rows || !wanted) break;
      const float* from = staged + (first + i) * kPitch + element;
      float values[kElements];
      if (together) {
        UNROLL
        for (int e = 0; e < kElements; ++e) values[e] = 0;
        for (int rank = 0; rank < 1 << p.log_cluster; rank += 2) {
          float sums_there[2][kElements / 4][4];  // two blocks' at once: there is some way to go
          UNROLL
          for (int i = 0; i < 2 * kElements / 4; ++i)
            load_from_block(rank + i % 2, from + i / 2 * 4, sums_there[i % 2][i / 2]);
          UNROLL
          for (int e = 0; e < kElements; ++e) values[e] += sums_there[0][e / 4][e % 4] + sums_there[1][e / 4][e % 4];
        }
      } else {
        UNROLL
        for (int e = 0; e < kElements; e += 4) {
          float four[4];
          widen<fp32, 4>(load<fp32, 4>(from + e), four);
          UNROLL
          for (int f = 0; f < 4; ++f) values[e + f] = four[f];
        }
      }
      const long long offset =
          static_cast<long long>(pixel_of(row)) * p.result_pitch + place.group * p.result_group + column;
      if (p.partials == 1) {
        epilogue(offset, values);
        store<T, kElements>(static_cast<T*>(p.result) + offset, narrow<T, kElements>(values));
      } else {
        float* to = static_cast<float*>(p.result) + (place.split >> p.log_cluster) * p.result_numel + offset;
        UNROLL
        for (int e = 0; e < kElements; e += 4) {
          const float four[4] = {values[e], values[e + 1], values[e + 2], values[e + 3]};
          store<fp32, 4>(to + e, narrow<fp32, 4>(four));
        }
      }
    }
  }
  if (kClusters && p.log_cluster) cluster_barrier();  // until nobody reads this block's
}

// forward, and input_grad with kTransposed: the filter's lines are the depth then.
template <class Shape, bool kPointwise, bool kTransposed>
DEVICE void correlate(const ImplicitGemmArgs& p) {
  using T = typename Shape::T;
  constexpr int kThreads = Shape::kThreads, kDepth = Shape::kDepth;
  using TileA = typename Shape::template TileA<Lines::kAlongDepth>;
  using TileB = typename Shape::template TileB<kTransposed ? Lines::kAlongOuter : Lines::kAlongDepth>;
  DYNAMIC_SHARED(shared);
  const Place place = place_of<Shape, kTransposed>(p);
  const ImplicitGemmAxis& height = p.heights[kTransposed ? place.class_h : 0];
  const ImplicitGemmAxis& width = p.widths[kTransposed ? place.class_w : 0];
  const int rows = p.pictures * height.count * width.count;
  if (place.row >= rows) return;
  const int taps = height.taps * width.taps, depth = taps * p.depth_per_tap;
  const Steps steps = steps_of((depth + kDepth - 1) / kDepth, place.split, p);
  const int first = steps.first * kDepth;

  typename Shape::Sums sums;
  Gathered<T, TileA, kThreads, kDepth, !kPointwise> a(p, static_cast<const T*>(p.a) + place.group * p.a_group, height,
                                                      width, place.row, rows, first);
  const T* filter = static_cast<const T*>(p.b) + place.group * p.b_group;
  if constexpr (!kTransposed) {
    Straight<T, TileB, kThreads, kDepth> b(filter, place.column, p.columns, p.filter_pitch, first, depth);
    multiply<Shape>(a, b, steps.count, shared, sums);
  } else if constexpr (kPointwise) {
    Transposed<T, TileB, kThreads, kDepth> b(filter, place.column, p.columns, p.filter_pitch, first, p.depth_of_tap);
    multiply<Shape>(a, b, steps.count, shared, sums);
  } else {
    FilterTaps<T, TileB, kThreads, kDepth> b(p, filter, height, width, place.column, first);
    multiply<Shape>(a, b, steps.count, shared, sums);
  }
  store_sums<Shape, AddBias>(sums, shared, p, place, rows, [&](int row) {
    if (!kTransposed || !p.scattered) return row;
    int column = row;
    int line = divide_with_rest(column, width.by_count);
    const int number = divide_with_rest(line, height.by_count);
    return (number * p.result_h + height.first + line * p.result_step_h) * p.result_w + width.first +
           column * p.result_step_w;
  });
}

template <class Shape, bool kPointwise>
DEVICE void forward(const ImplicitGemmArgs& p) {
  correlate<Shape, kPointwise, false>(p);
}

template <class Shape, bool kPointwise>
DEVICE void input_grad(const ImplicitGemmArgs& p) {
  correlate<Shape, kPointwise, true>(p);
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
  const T* picture = static_cast<const T*>(p.b) + place.group * p.b_group;
  if constexpr (kPointwise) {
    Transposed<T, TileB, kThreads, kDepth> b(picture, place.column, p.columns, p.source_channels, first, p.pixels);
    multiply<Shape>(a, b, steps.count, shared, sums);
  } else {
    GatheredColumns<T, TileB, kThreads, kDepth> b(p, picture, place.column, first, p.pixels);
    multiply<Shape>(a, b, steps.count, shared, sums);
  }
  store_sums<Shape, AddBias>(sums, shared, p, place, p.rows, [](int row) { return row; });
}

// Adds up the splits' sums: a warp every eighth of them, then the warps' sums, always in the same order.
template <class Shape, bool>
DEVICE void finish(const ImplicitGemmFinishArgs& p) {
  using T = typename Shape::T;
  constexpr int kWarps = Shape::kThreads / kWarp;
  SHARED float shared[kWarps][kWarp * 4];
  const int lane = lane_id(), warp = warp_id();
  const long long element = (static_cast<long long>(block_x()) * kWarp + lane) * 4;
  float sums[4] = {};
  if (element < p.numel) {
    for (int split = warp; split < p.splits; split += kWarps) {
      float part[4];
      widen<fp32, 4>(load<fp32, 4>(p.partial + split * p.numel + element), part);
      UNROLL
      for (int e = 0; e < 4; ++e) sums[e] += part[e];
    }
  }
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

#define X(what, T, kind, rows, columns, down, across, stages)                                                \
  KERNEL(down * across * reformer::kWarp)                                                                    \
  implicit_gemm_##what##_##T##_##kind##_##rows##x##columns##_##down##x##across##_##stages(                   \
      reformer::ImplicitGemmArgsOf_##what args) {                                                            \
    reformer::what<reformer::Shape<reformer::T, rows, columns, down, across, stages>, reformer::kind>(args); \
  }
// Entries that are there for wgmma's sake; the emulator has them too.
#if defined(REFORMER_WGMMA_GROUPS) || defined(REFORMER_EMULATOR)
#define X_GROUPS(...) X(__VA_ARGS__)
#else
#define X_GROUPS(...)
#endif
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "implicit_gemm.inc"
#endif
