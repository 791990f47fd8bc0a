// Sources of an implicit GEMM's operands, read step by step along the depth.
#pragma once

#include "../device/async_copy.h"
#include "../device/operand_tile.h"
#include "implicit_gemm.h"

namespace reformer {

// True if copies to shared memory are asynchronous.
#if defined(REFORMER_MMA)
constexpr bool kAsync = true;
#else
constexpr bool kAsync = false;
#endif

// from + offset, in one instruction and without a register for the sign of the offset.
template <class T>
DEVICE T* at(T* from, int offset) {
#if defined(REFORMER_NVIDIA)
  T* sum;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(offset), "n"(int(sizeof(T))), "l"(from));
  return sum;
#else
  return from + offset;
#endif
}

DEVICE int least(int a, int b) { return a < b ? a : b; }

// The part of a tile that one thread copies: the same chunk of kCount lines. The sources below derive from it, and
// define where line l of the part is read, or whether zeros are written instead.
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

// The copy via registers.
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

// A matrix whose lines run along the depth.
template <class T, class Tile, int kThreads, int kDepth>
struct Straight : Part<Tile, kThreads> {
  using Mine = Part<Tile, kThreads>;
  const T* from;
  const int pitch, lines;  // from the thread's first line on
  int depth;               // depth of the thread's chunk in the first step, minus the total depth

  DEVICE Straight(const T* matrix, int first_line, int all_lines, int line_pitch, int first_depth, int all_depth)
      : pitch(line_pitch), lines(all_lines - first_line - Mine::line(0)) {
    depth = first_depth + Mine::chunk() * Mine::kElements;
    from = matrix + static_cast<long long>(first_line + Mine::line(0)) * pitch + depth;
    depth -= all_depth;
  }
  DEVICE const T* address(int l) const { return at(from, l * Mine::kApart * pitch); }
  DEVICE bool valid(int l) const { return depth < 0 && l * Mine::kApart < lines; }
  DEVICE void advance() {
    from += kDepth;
    depth += kDepth;
  }
  DEVICE void rewind(int steps) {
    from -= steps * kDepth;
    depth -= steps * kDepth;
  }
};

// The im2col operand of forward and input_grad: a line is a pixel, and its depth is the source's channels at each tap.
// Without kTaps there is only one tap, which is inside the image. begin() is called first, and again for other rows.
template <class T, class Tile, int kThreads, int kDepth, bool kTaps>
struct Im2colRows : Part<Tile, kThreads> {
  using Mine = Part<Tile, kThreads>;
  const ImplicitGemmArgs& p;
  const int taps_h, taps_w;
  const T* from;  // this chunk at this tap, minus the pixel's offset
  int depth;      // this chunk's position within this tap
  int offsets[Mine::kCount];
  int rows[Mine::kCount], columns[Mine::kCount];  // in the source, at tap 0
  int tap_h, tap_w;
  unsigned inside;  // bit l: this tap of line l is inside the image

  DEVICE Im2colRows(const ImplicitGemmArgs& args, int all_taps_h, int all_taps_w)
      : p(args), taps_h(all_taps_h), taps_w(all_taps_w) {}
  DEVICE void begin(const T* image, const ImplicitGemmAxis& height, const ImplicitGemmAxis& width, int first_row,
                    int all_rows, int first_depth) {
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
    from = image;
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

// A matrix whose lines run along the outer index. Chunks past the last one repeat it.
template <class T, class Tile, int kThreads, int kDepth>
struct Transposed : Part<Tile, kThreads> {
  using Mine = Part<Tile, kThreads>;
  const T* from;
  const int pitch, end;  // end: where the depth of a tap ends
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
  DEVICE void rewind(int steps) {
    from -= steps * kDepth * pitch;
    depth -= steps * kDepth;
  }
};

// The filter, transposed: lines are the k at each tap of a class.
template <class T, class Tile, int kThreads, int kDepth>
struct FilterTaps : Transposed<T, Tile, kThreads, kDepth> {
  using Lined = Transposed<T, Tile, kThreads, kDepth>;
  const ImplicitGemmArgs& p;
  const int taps_h, taps_w;
  int tap_w;

  DEVICE FilterTaps(const ImplicitGemmArgs& args, const T* filter, const ImplicitGemmAxis& height,
                    const ImplicitGemmAxis& width, int first_column, int first_depth)
      : Lined(filter, first_column, args.columns, args.filter_pitch, 0, args.depth_of_tap),
        p(args),
        taps_h(height.taps),
        taps_w(width.taps) {
    tap_w = divide_with_rest(first_depth, p.by_depth_per_tap);
    const int tap_h = divide_with_rest(tap_w, width.by_taps);
    this->depth += first_depth;
    this->from += first_depth * p.filter_pitch + height.first_tap * p.filter_tap_h + tap_h * p.filter_pitch_h +
                  width.first_tap * p.filter_tap_w + tap_w * p.filter_pitch_w;
  }
  DEVICE void advance() {
    Lined::advance();
    if (this->depth < p.depth_per_tap) return;  // uniform for all threads: it is a whole number of steps
    this->depth -= p.depth_per_tap;
    int tap = p.filter_pitch_w;
    if (++tap_w == taps_w) {
      tap_w = 0;
      tap += p.filter_pitch_h - p.filter_pitch_w * taps_w;
    }
    this->from += tap - p.depth_per_tap * p.filter_pitch;
  }
  DEVICE void rewind(int) { this->from -= taps_h * p.filter_pitch_h; }  // after all taps: back to the first one
};

// The im2col operand of weight_grad: columns are taps and channels, lines are the result's pixels.
template <class T, class Tile, int kThreads, int kDepth>
struct Im2colColumns : Part<Tile, kThreads> {
  using Mine = Part<Tile, kThreads>;
  const ImplicitGemmArgs& p;
  const T* from;
  const int end;
  int depth, last_row, last_column;  // in the source: the position of the last pixel's tap, plus a stride
  int rows[Mine::kCount], columns[Mine::kCount], offsets[Mine::kCount];

  DEVICE Im2colColumns(const ImplicitGemmArgs& args, const T* image, int first_column, int first_depth, int last_depth)
      : p(args), end(last_depth) {
    int channel = least(first_column + Mine::chunk() * Mine::kElements, p.columns - Mine::kElements);
    int tap_w = divide_with_rest(channel, p.by_channels);
    const int tap_h = divide_with_rest(tap_w, p.by_filter_w);
    const int top = tap_h * p.dilation_h - p.pad_h, left = tap_w * p.dilation_w - p.pad_w;
    last_row = top + p.out_h * p.stride_h;
    last_column = left + p.out_w * p.stride_w;
    from = image + channel;
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
        offsets[l] += p.image_offset;
      }
    }
  }
};

}  // namespace reformer
