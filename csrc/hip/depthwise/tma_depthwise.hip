// Depthwise convolution in NHWC of 2-byte elements by matrix instructions. Hopper's bulk copy engine loads the tiles,
// borders included, and stores the results.
//
// A product of 16 x 16 and 16 x 8 elements computes 16 pixels of 8 channels at two taps of the filter. The left matrix
// has the pixels' 8 channels at one tap, and those at the other; the right matrix has the filter's values for these on
// two diagonals, and zeros elsewhere. Seven eighths of the multiplications are by zero; still it is faster than scalar
// multiplication, since the matrices are loaded as they are in memory, without conversions. The gradient of the filter
// is on the diagonals of the products of x at two taps, transposed, and y: 8 x 2 of 16 x 8 sums are used.
//
// A consequence: NaN and infinity reach the 7 channels of the same group, by a multiplication by zero.
#include "../device/grid_dependency.h"
#include "../device/mma.h"
#include "../device/tma.h"
#include "tma_depthwise_program.h"

#if defined(REFORMER_TMA)
namespace reformer {
namespace {

constexpr int kWarps = kTmaDepthwiseWarps;

// --- shared memory: lines of 128 bytes, the 64 channels of a pixel, with the chunks in OperandTile's order
DEVICE unsigned char* chunk(unsigned char* tile, int line, int group) {
  return tile + line * 128 + ((group ^ (line & 7)) << 4);
}

struct Memory {
  unsigned char* tiles;
  const TmaDepthwiseArgs& p;

  DEVICE unsigned char* source(int stage) const { return tiles + stage * p.stage_bytes; }
  DEVICE unsigned char* y(int stage) const { return source(stage) + p.stage_bytes - p.tile_bytes; }
  DEVICE unsigned char* result(int half) const { return tiles + p.stages * p.stage_bytes + half * p.tile_bytes; }
  DEVICE unsigned full(int stage) const { return tma::shared_address(tiles + p.barriers + stage * 8); }
  DEVICE unsigned empty(int stage) const { return full(p.stages + stage); }
};

// Where a tile begins, in units of tiles.
struct Place {
  int across, down, images;
};
DEVICE Place place_of(const TmaDepthwiseArgs& p, int tile) {
  Place place{tile, 0, 0};
  place.down = divide_with_rest(place.across, p.tiles_across);
  place.images = divide_with_rest(place.down, p.tiles_down);
  return place;
}

DEVICE WarpTask warp_task(const TmaDepthwiseArgs& p) {
  const int left = (p.channels - block_x() * kTmaDepthwiseChannels) / 8, groups = left < 8 ? left : 8;
  const int warp = warp_id(), workers = kWarps / groups;
  const int worker = warp / groups;
  return {warp - worker * groups, groups, worker < workers ? worker : p.pairs, workers};
}

// The first pixel of a strip: its line in a box of so many rows and columns.
DEVICE int line_of(const TmaDepthwiseArgs& p, int strip, int height, int width, int step) {
  int column = strip;
  int row = divide_with_rest(column, p.strips_across);
  const int image = divide_with_rest(row, p.strips_down);
  return (image * height + row * p.rows * step) * width + column * 8 * step;
}

// The number of the strip's rows in which this lane's pixels are inside of the image.
DEVICE int rows_inside(const TmaDepthwiseArgs& p, const Place& place, int strip) {
  int column = strip;
  int row = divide_with_rest(column, p.strips_across);
  const int image = divide_with_rest(row, p.strips_down);
  const bool inside =
      place.across * p.tile_w + column * 8 + lane_id() / 4 < p.width && place.images * p.tile_images + image < p.images;
  return inside ? p.height - place.down * p.tile_h - row * p.rows : 0;
}

// --- the filter on diagonals
// Registers of a right matrix: this lane's word of one tap, present only in lanes on the diagonal.
template <class T, int R>
struct Diagonal {
  const unsigned short* filter;  // null if the lane has none
  int shift, flipped;

  DEVICE Diagonal(const TmaDepthwiseArgs& p, int group) : filter(nullptr), flipped(p.flipped) {
    const int lane = lane_id(), channel = lane / 4;
    shift = channel % 2 * 16;
    if (lane % 4 == channel / 2)
      filter = static_cast<const unsigned short*>(p.filter) +
               (block_x() * kTmaDepthwiseChannels + group * 8 + channel) * (R * R);
  }
  DEVICE unsigned tap(int r, int s) const {
    if (!filter || r < 0 || r >= R || s < 0 || s >= R) return 0;
    const int at = r * R + s;
    return unsigned(filter[flipped ? R * R - 1 - at : at]) << shift;
  }
};

// Rounds the sums of a row of two strips and writes them to the tile of the result; lanes 0 to 15 provide the lines.
template <class T>
DEVICE void put(unsigned char* result, int line, int group, const float (&sums)[4]) {
  tma::store_matrices(tma::shared_address(chunk(result, line, group)), narrow_pair<T>(sums[0], sums[1]),
                      narrow_pair<T>(sums[2], sums[3]));
}

constexpr int half(int x) { return (x + 1) / 2; }

// --- a warp's work on a tile: forward
template <class T, int R, int ST, class Program>
struct Forward {
  static constexpr int kPairs = half(R);  // pairs of taps in a row
  unsigned filter[R][kPairs][2];
  typename Program::template Thread<T> program;

  DEVICE explicit Forward(const Program& of) : program(of) {}

  DEVICE void prepare(const TmaDepthwiseArgs& p, const WarpTask& task) {
    const Diagonal<T, R> diagonal(p, task.group);
    UNROLL
    for (int r = 0; r < R; ++r) {
      UNROLL
      for (int s = 0; s < kPairs; ++s) {
        filter[r][s][0] = diagonal.tap(r, 2 * s);
        filter[r][s][1] = diagonal.tap(r, 2 * s + 1);
      }
    }
    program.prepare(p, block_x() * kTmaDepthwiseChannels + task.group * 8 + lane_id() % 4 * 2);
  }

  DEVICE void compute(const TmaDepthwiseArgs& p, const WarpTask& task, int tile, unsigned char* source,
                      unsigned char* result) {
    const int lane = lane_id();
    const Place place = place_of(p, tile);
    for (int pair = task.first_pair; pair < p.pairs; pair += task.pairs_apart) {
      const int inside[2] = {rows_inside(p, place, pair * 2), rows_inside(p, place, pair * 2 + 1)};
      const int strip = pair * 2 + (lane >> 3 & 1);
      const int from = line_of(p, strip, p.source_h, p.source_w, ST) + lane % 8 * ST;
      const int second = lane >> 4;
      int to = line_of(p, strip, p.tile_h, p.tile_w, 1) + lane % 8;
      // This lane's line of the taps' pixels. If there is no second tap, its filter is zero.
      const auto load_row = [&](int row, unsigned (&x)[kPairs][4]) {
        UNROLL
        for (int s = 0; s < kPairs; ++s) {
          const int tap = 2 * s + 1 < R ? 2 * s + second : 2 * s;
          mma_sync::load_matrices<false>(chunk(source, from + row * p.source_w + tap, task.group), x[s]);
        }
      };
      if constexpr (ST == 1) {
        // A row of the source contributes to R rows of the result, whose sums are in a ring. For wide filters, sums of
        // rows outside of the strip (above the first, below the last) are skipped; for small filters the check takes
        // longer.
        float sums[R][4];
        UNROLL
        for (int r = 0; r < R; ++r) program.begin(sums[r]);
        const int rows = p.rows + R - 1;
        unsigned x[kPairs][4];
        load_row(0, x);
        for (int first = 0; first < rows; first += R) {
          UNROLL
          for (int u = 0; u < R; ++u) {
            const int row = first + u;
            if (row >= rows) break;
            UNROLL
            for (int r = 0; r < R; ++r) {
              if (R > 3 && (row < r || row - r >= p.rows)) continue;
              UNROLL
              for (int s = 0; s < kPairs; ++s) mma_sync::multiply_add<T>(sums[(u - r + R) % R], x[s], filter[r][s]);
            }
            if (row + 1 < rows) load_row(row + 1, x);  // in flight while the sums are stored
            if (row >= R - 1) {
              program.run(sums[(u + 1) % R], {row - (R - 1) < inside[0], row - (R - 1) < inside[1]});
              put<T>(result, to, task.group, sums[(u + 1) % R]);
              to += p.tile_w;
            }
            program.begin(sums[(u + 1) % R]);
          }
        }
      } else {
        for (int row = 0; row < p.rows; ++row, to += p.tile_w) {
          float sums[4];
          program.begin(sums);
          UNROLL
          for (int r = 0; r < R; ++r) {
            unsigned x[kPairs][4];
            load_row(row * ST + r, x);
            UNROLL
            for (int s = 0; s < kPairs; ++s) mma_sync::multiply_add<T>(sums, x[s], filter[r][s]);
          }
          program.run(sums, {row < inside[0], row < inside[1]});
          put<T>(result, to, task.group, sums);
        }
      }
    }
  }

  DEVICE void finish(const TmaDepthwiseArgs& p, const WarpTask& task, unsigned char* memory) const {
    program.end(p, task, memory);
  }
};

// --- input_grad with stride 2. dx at 2 q + f gets dy at q + d times the taps s with 2 (q + d) + s = 2 q + f + pad, for
// all d. So the same pixels of dy serve both parities of dx, for columns and rows. d decreases from the largest one,
// that of tap 0; after k steps the tap is f + 2 k, or one less if pad is odd.
template <class T, int R>
struct InputGrad {
  static constexpr int kTaps = half(R), kPairs = half(kTaps);  // steps, and pairs of steps in a row
  unsigned filter[kTaps][2][2][kPairs][2];

  DEVICE void prepare(const TmaDepthwiseArgs& p, const WarpTask& task) {
    const Diagonal<T, R> diagonal(p, task.group);
    UNROLL
    for (int up = 0; up < kTaps; ++up) {
      UNROLL
      for (int e = 0; e < 2; ++e) {
        UNROLL
        for (int f = 0; f < 2; ++f) {
          UNROLL
          for (int left = 0; left < kPairs * 2; ++left)
            filter[up][e][f][left / 2][left % 2] = diagonal.tap(2 * up + e - p.odd_h, 2 * left + f - p.odd_w);
        }
      }
    }
  }

  DEVICE void compute(const TmaDepthwiseArgs& p, const WarpTask& task, int, unsigned char* source,
                      unsigned char* result) {
    const int lane = lane_id();
    for (int pair = task.first_pair; pair < p.pairs; pair += task.pairs_apart) {
      const int strip = pair * 2 + (lane >> 3 & 1), second = lane >> 4;
      const int from = line_of(p, strip, p.source_h, p.source_w, 1) + lane % 8 + (kTaps - 1) * (p.source_w + 1);
      int to = line_of(p, strip, p.tile_h, p.tile_w, 2) + lane % 8 * 2;
      for (int row = 0; row < p.rows; ++row, to += 2 * p.tile_w) {
        float sums[2][2][4] = {};
        UNROLL
        for (int up = 0; up < kTaps; ++up) {
          UNROLL
          for (int d = 0; d < kPairs; ++d) {
            const int left = 2 * d + 1 < kTaps ? 2 * d + second : 2 * d;
            unsigned y[4];
            mma_sync::load_matrices<false>(chunk(source, from + (row - up) * p.source_w - left, task.group), y);
            UNROLL
            for (int e = 0; e < 2; ++e) {
              UNROLL
              for (int f = 0; f < 2; ++f) mma_sync::multiply_add<T>(sums[e][f], y, filter[up][e][f][d]);
            }
          }
        }
        UNROLL
        for (int e = 0; e < 2; ++e) {
          UNROLL
          for (int f = 0; f < 2; ++f) put<T>(result, to + e * p.tile_w + f, task.group, sums[e][f]);
        }
      }
    }
  }

  DEVICE void finish(const TmaDepthwiseArgs&, const WarpTask&, unsigned char*) const {}
};

// --- weight_grad
template <class T, int R, int ST>
struct WeightGrad {
  static constexpr int kPairs = half(R);
  float sums[R][kPairs][4];

  DEVICE void prepare(const TmaDepthwiseArgs&, const WarpTask&) {
    UNROLL
    for (int r = 0; r < R; ++r) {
      UNROLL
      for (int s = 0; s < kPairs; ++s) {
        UNROLL
        for (int e = 0; e < 4; ++e) sums[r][s][e] = 0;
      }
    }
  }

  DEVICE void compute(const TmaDepthwiseArgs& p, const WarpTask& task, int, unsigned char* source,
                      unsigned char* y_tile) {
    const int lane = lane_id();
    for (int pair = task.first_pair; pair < p.pairs; pair += task.pairs_apart) {
      const int second = lane >> 3 & 1;
      const int from = line_of(p, pair * 2 + (lane >> 4), p.source_h, p.source_w, ST) + lane % 8 * ST;
      const int y_from = line_of(p, pair * 2 + (lane >> 3 & 1), p.tile_h, p.tile_w, 1) + lane % 8;
      const auto load_row = [&](int row, unsigned (&x)[kPairs][4]) {
        UNROLL
        for (int s = 0; s < kPairs; ++s) {
          const int tap = 2 * s + 1 < R ? 2 * s + second : 2 * s;
          mma_sync::load_matrices<true>(chunk(source, from + row * p.source_w + tap, task.group), x[s]);
        }
      };
      const auto load_y = [&](int row, unsigned (&y)[2]) {
        unsigned strips[4];  // the two strips, and both once more
        mma_sync::load_matrices<true>(chunk(y_tile, y_from + row * p.tile_w, task.group), strips);
        y[0] = strips[0];
        y[1] = strips[1];
      };
      if constexpr (ST == 1 && R < 7) {
        // A row of x meets R rows of y, which are in a ring, with zeros above the first and below the last. With wide
        // filters there are not enough registers for it.
        unsigned y[R][2] = {};
        const int rows = p.rows + R - 1;
        unsigned x[kPairs][4];
        load_row(0, x);
        for (int first = 0; first < rows; first += R) {
          UNROLL
          for (int u = 0; u < R; ++u) {
            const int row = first + u;
            if (row >= rows) break;
            y[u][0] = y[u][1] = 0;
            if (row < p.rows) load_y(row, y[u]);
            UNROLL
            for (int r = 0; r < R; ++r) {
              if (R > 3 && (row < r || row - r >= p.rows)) continue;
              UNROLL
              for (int s = 0; s < kPairs; ++s) mma_sync::multiply_add<T>(sums[r][s], x[s], y[(u - r + R) % R]);
            }
            if (row + 1 < rows) load_row(row + 1, x);
          }
        }
      } else {
        for (int row = 0; row < p.rows; ++row) {
          unsigned y[2];
          load_y(row, y);
          UNROLL
          for (int r = 0; r < R; ++r) {
            unsigned x[kPairs][4];
            load_row(row * ST + r, x);
            UNROLL
            for (int s = 0; s < kPairs; ++s) mma_sync::multiply_add<T>(sums[r][s], x[s], y);
          }
        }
      }
    }
  }

  // Adds up the warps' sums, in shared memory, in a fixed order.
  DEVICE void finish(const TmaDepthwiseArgs& p, const WarpTask& task, unsigned char* memory) {
    float* const shared = reinterpret_cast<float*>(memory);
    const int lane = lane_id(), channel = lane / 4;
    tma::group_barrier(1, kWarps * 32);  // all warps have read the last tile
    if (lane % 4 == channel / 2) {
      float* const to = shared + warp_id() * R * R * 8 + channel;
      UNROLL
      for (int r = 0; r < R; ++r) {
        UNROLL
        for (int s = 0; s < R; ++s)
          to[(r * R + s) * 8] = channel % 2 ? sums[r][s / 2][s % 2 * 2 + 1] : sums[r][s / 2][s % 2 * 2];
      }
    }
    tma::group_barrier(1, kWarps * 32);
    if (task.first_pair != 0) return;
    float* const to = p.partial + static_cast<long long>(block_y()) * R * R * p.channels +
                      block_x() * kTmaDepthwiseChannels + task.group * 8;
    for (int i = lane; i < R * R * 8; i += 32) {
      float sum = 0;
      for (int worker = 0; worker < task.pairs_apart; ++worker)
        sum += shared[(task.group + worker * task.groups) * R * R * 8 + i];
      to[i / 8 * p.channels + i % 8] = sum;
    }
  }
};

// The block's main loop: one warp starts the copies of tiles, the others compute them.
template <bool kWeightGrad, class What>
DEVICE void run(const TmaDepthwiseArgs& p, What what) {
  DYNAMIC_SHARED(shared);
  const Memory memory{shared, p};
  const int channel = block_x() * kTmaDepthwiseChannels;
  if (thread_id() == 0) {
    for (int stage = 0; stage < p.stages; ++stage) {
      tma::init_barrier(memory.full(stage), 1);
      tma::init_barrier(memory.empty(stage), kWarps);
    }
    tma::publish_barriers();
  }
  if (thread_id() == kWarps * 32) {
    tma::prefetch(p.source);
    tma::prefetch(p.other);
  }
  barrier();
  grid_dependency_wait();

  int stage = 0, parity = 0;
  const auto advance = [&] {
    if (++stage == p.stages) stage = 0, parity ^= 1;
  };
  if (warp_id() == kWarps) {
    if (lane_id()) return;
    for (int tile = block_y(); tile < p.tiles; tile += p.blocks, advance()) {
      const Place place = place_of(p, tile);
      tma::wait(memory.empty(stage), parity ^ 1);
      tma::arrive_expecting(memory.full(stage), p.copied_bytes);
      const unsigned to = tma::shared_address(memory.source(stage));
      const int image = place.images * p.tile_images;
      tma::load(p.source, to, memory.full(stage), channel,
                p.source_left + place.across * p.tile_w * p.source_halves / 2,
                p.source_top + place.down * p.tile_h * p.source_halves / 2, image);
      if constexpr (kWeightGrad)
        tma::load(p.other, tma::shared_address(memory.y(stage)), memory.full(stage), channel, place.across * p.tile_w,
                  place.down * p.tile_h, image);
    }
    return;
  }

  const WarpTask task = warp_task(p);
  what.prepare(p, task);
  int half = 0;
  for (int tile = block_y(); tile < p.tiles; tile += p.blocks, advance()) {
    tma::wait(memory.full(stage), parity);
    unsigned char* const source = memory.source(stage);
    if constexpr (kWeightGrad) {
      what.compute(p, task, tile, source, memory.y(stage));
      if (lane_id() == 0) tma::arrive(memory.empty(stage));
    } else {
      const bool starts = thread_id() == 0;
      if (starts) tma::wait_for_reads<1>();
      tma::group_barrier(1, kWarps * 32);  // the store before the last one has finished reading this half
      what.compute(p, task, tile, source, memory.result(half));
      if (lane_id() == 0) tma::arrive(memory.empty(stage));
      wgmma::publish();
      tma::group_barrier(1, kWarps * 32);
      const Place place = place_of(p, tile);
      if (starts)
        tma::store(p.other, tma::shared_address(memory.result(half)), channel, place.across * p.tile_w,
                   place.down * p.tile_h, place.images * p.tile_images);
      half ^= 1;
    }
  }
  what.finish(p, task, shared);
  if (!kWeightGrad && thread_id() == 0) tma::wait_for_reads<0>();
}

template <class T, int R, int ST, class Program = AddBias>
DEVICE void forward(const TmaDepthwiseArgs& p, const Program& program = {}) {
  run<false>(p, Forward<T, R, ST, Program>(program));
}
template <class T, int R, int>
DEVICE void input_grad(const TmaDepthwiseArgs& p) {
  run<false>(p, InputGrad<T, R>{});
}
template <class T, int R, int ST>
DEVICE void weight_grad(const TmaDepthwiseArgs& p) {
  run<true>(p, WeightGrad<T, R, ST>{});
}

}  // namespace
}  // namespace reformer

// A kernel that runs a program. The program's text follows this file, and no other kernel is compiled.
#ifdef REFORMER_TEXT_FOLLOWS
#define REFORMER_WITH_PROGRAM(name, Program, what, T, R, ST)                                               \
  KERNEL_OCCUPANCY(reformer::kTmaDepthwiseThreads, reformer::kTmaDepthwiseOccupancy_##what<R>)             \
  name(const __grid_constant__ reformer::WithProgram<reformer::TmaDepthwiseArgs> args) {                   \
    reformer::grid_dependency_launch();                                                                    \
    reformer::what<reformer::T, R, ST>(args.conv, reformer::RunsProgram<reformer::Program>{args.program}); \
  }
#else
#define X(what, T, R, ST)                                                                            \
  KERNEL_OCCUPANCY(reformer::kTmaDepthwiseThreads, reformer::kTmaDepthwiseOccupancy_##what<R>)       \
  tma_depthwise_##what##_##T##_##R##_##ST(const __grid_constant__ reformer::TmaDepthwiseArgs args) { \
    reformer::grid_dependency_launch();                                                              \
    reformer::what<reformer::T, R, ST>(args);                                                        \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "tma_depthwise.inc"
#endif
#endif
#endif
