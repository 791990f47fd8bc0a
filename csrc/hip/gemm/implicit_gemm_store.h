// Stores the sums of a block of an implicit GEMM: vectorized over adjacent columns, after an epilogue.
#pragma once

#include "../device/cluster.h"
#include "implicit_gemm_operands.h"

namespace reformer {
namespace {

// The tile that a block computes.
struct Place {
  int row, column, group, split;
  int class_h, class_w;
};

// The plain epilogue, which adds a bias before sums are rounded and stored. A program (implicit_gemm_program.h) can
// take its place.
struct AddBias {
  const ImplicitGemmArgs& p;

  // The epilogue for kElements adjacent columns, which are always the same in a thread. The loads of kUnroll rows are
  // in flight at once.
  template <class T, int kElements>
  class Columns {
    float bias_[kElements] = {};

   public:
    static constexpr int kUnroll = 1;
    struct Loaded {};

    // channel: the first of the columns, as a channel of the result; all of the columns exist.
    DEVICE Columns(const AddBias& of, int channel) {
      if (of.p.bias)
        widen<T, kElements>(reformer::load<T, kElements>(static_cast<const T*>(of.p.bias) + channel), bias_);
    }
    // pixel: of the result.
    DEVICE Loaded load(int) const { return {}; }
    DEVICE void run(int, const Loaded&, float (&values)[kElements]) const {
      UNROLL
      for (int e = 0; e < kElements; ++e) values[e] += bias_[e];
    }
  };
};

// Hides the origin of a value from the compiler, which then neither recomputes the value nor hoists computations with
// it out of the surrounding loops, which would take registers.
DEVICE void compute_once(int& value) {
#if defined(REFORMER_NVIDIA)
  asm volatile("" : "+r"(value));
#endif
}
DEVICE void compute_once(unsigned char*& value) {
#if defined(REFORMER_NVIDIA)
  asm volatile("" : "+l"(value));
#endif
}

// Destination of a block's results: values rounded to T, or partial sums.
template <class T>
struct Results {
  static constexpr int kElements = 16 / int(sizeof(T));  // adjacent elements per access
  const bool whole;
  int bytes;
  unsigned char* to;

  DEVICE Results(const ImplicitGemmArgs& p, int split)
      : whole(p.partials == 1), bytes(whole ? int(sizeof(T)) : 4), to(static_cast<unsigned char*>(p.result)) {
    if (!whole) to += (split >> p.log_cluster) * p.result_numel * 4;
    compute_once(to);
    compute_once(bytes);
  }
  // offset: of the first value in the result.
  template <class Columns>
  DEVICE void store(const Columns& columns, int pixel, const typename Columns::Loaded& loaded, int offset,
                    float (&values)[kElements]) const {
    unsigned char* const first = to + static_cast<unsigned long long>(unsigned(offset)) * unsigned(bytes);
    if (whole) {
      columns.run(pixel, loaded, values);
      reformer::store<T, kElements>(reinterpret_cast<T*>(first), narrow<T, kElements>(values));
    } else {
      UNROLL
      for (int e = 0; e < kElements; e += 4) {
        const float four[4] = {values[e], values[e + 1], values[e + 2], values[e + 3]};
        reformer::store<fp32, 4>(reinterpret_cast<float*>(first) + e, narrow<fp32, 4>(four));
      }
    }
  }
};

// Loads adjacent sums from shared memory, added up over the blocks of a cluster.
template <int kElements>
DEVICE void load_staged(const float* from, int blocks, float (&values)[kElements]) {
  if constexpr (kClusters) {
    UNROLL
    for (int e = 0; e < kElements; ++e) values[e] = 0;
    constexpr int kIterations = kElements == 4 ? 4 : 1;  // more iterations would need too many registers
    UNROLL_BY(kIterations)
    for (int rank = 0; rank < blocks; rank += 2) {
      float sums_there[2][kElements / 4][4];  // two blocks' loads at once, to hide their latency
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
}

// Stores the block's sums via shared memory, so that a thread has adjacent elements for vectorized stores.
template <class Shape, class Epilogue, class PixelOf>
DEVICE void store_from_shared(const typename Shape::Sums& sums, unsigned char* shared, const ImplicitGemmArgs& p,
                              const Epilogue& epilogue, const Place& place, int rows, PixelOf pixel_of) {
  using To = Results<typename Shape::T>;
  constexpr int kElements = To::kElements, kAcross = Shape::kColumns / kElements;
  using Columns = typename Epilogue::template Columns<typename Shape::T, kElements>;
  constexpr int kPitch = Shape::kPitch, kSlab = Shape::kSlabRows;
  static_assert(Shape::kThreads % kAcross == 0 && kSlab % Shape::kWarpRows == 0);
  constexpr int kApart = Shape::kThreads / kAcross, kMost = (kSlab + kApart - 1) / kApart;  // rows per thread
  constexpr int kUnroll = Columns::kUnroll < kMost ? Columns::kUnroll : kMost;
  float* staged = reinterpret_cast<float*>(shared);
  const int element = thread_id() % kAcross * kElements, column = place.column + element;
  const bool wanted = column < p.columns;
  const To to(p, place.split);
  const Columns columns(epilogue, place.group * p.columns + (wanted ? column : 0));
  UNROLL
  for (int slab = 0; slab < Shape::kRows; slab += kSlab) {
    barrier();  // no thread needs the old contents any more
    if (sums.row / kSlab * kSlab == slab) sums.store(staged + (sums.row - slab) * kPitch, kPitch);
    barrier();
    // The blocks of a cluster are adjacent splits. Each block adds up the sums of all blocks for its share of the rows.
    const int rows_each = kSlab >> p.log_cluster, first = (block_z() & ((1 << p.log_cluster) - 1)) * rows_each;
    if (kClusters) cluster_barrier();
    for (int i = thread_id() / kAcross; i < rows_each; i += kApart * kUnroll) {
      const int first_row = place.row + slab + first + i;
      if (first_row >= rows || !wanted) break;
      typename Columns::Loaded loaded[kUnroll];
      UNROLL
      for (int j = 0; j < kUnroll; ++j) loaded[j] = columns.load(pixel_of(least(first_row + j * kApart, rows - 1)));
      UNROLL
      for (int j = 0; j < kUnroll; ++j) {
        const int row = first_row + j * kApart;
        if (j && (i + j * kApart >= rows_each || row >= rows)) break;
        float values[kElements];
        load_staged(staged + (first + i + j * kApart) * kPitch + element, 1 << p.log_cluster, values);
        const int pixel = pixel_of(row);
        to.store(columns, pixel, loaded[j], pixel * p.result_pitch + place.group * p.result_group + column, values);
      }
    }
  }
  if (kClusters) cluster_barrier();  // until no other block reads this block's sums
}

// Processes the rows of a thread's columns (mma_sync::for_each_piece).
template <class Columns, class To, class PixelOf>
struct StoreRows {
  static constexpr int kUnroll = Columns::kUnroll;
  using Loaded = typename Columns::Loaded;
  const Columns columns;
  const To to;
  const PixelOf pixel_of;
  const int first, rows;  // the warp's first row, and the total number of rows
  const int offset;       // of the columns in the result
  const ImplicitGemmArgs& p;
  const bool wanted;  // true if the columns exist

  // For a row past the end it loads the last row: a condition would make each load wait for the previous one.
  DEVICE Loaded load(int row) const { return columns.load(pixel_of(least(first + row, rows - 1))); }
  DEVICE void store(int row, const Loaded& loaded, float (&values)[To::kElements]) const {
    row += first;
    if (!wanted || row >= rows) return;
    const int pixel = pixel_of(row);
    to.store(columns, pixel, loaded, pixel * p.result_pitch + offset, values);
  }
};

// Stores the block's sums. pixel_of(row): the pixel of the result that is this row.
template <class Shape, class Epilogue, class PixelOf>
DEVICE void store_sums(const typename Shape::Sums& sums, unsigned char* shared, const ImplicitGemmArgs& p,
                       const Epilogue& epilogue, const Place& place, int rows, PixelOf pixel_of) {
  if constexpr (!kAsync) {
    store_from_shared<Shape>(sums, shared, p, epilogue, place, rows, pixel_of);
  } else {
    if constexpr (kClusters)
      if (p.log_cluster) return store_from_shared<Shape>(sums, shared, p, epilogue, place, rows, pixel_of);
    using To = Results<typename Shape::T>;
    using Columns = typename Epilogue::template Columns<typename Shape::T, To::kElements>;
    const int first = place.row + sums.row;
    int first_column = place.column, group = place.group;
    compute_once(first_column);
    compute_once(group);
    const To to(p, place.split);
    sums.template for_each_piece<To::kElements>(p.columns - first_column, [&](int from) {
      const int column = first_column + from;
      const bool wanted = column < p.columns;
      return StoreRows<Columns, To, PixelOf>{Columns(epilogue, group * p.columns + (wanted ? column : 0)),
                                             to,
                                             pixel_of,
                                             first,
                                             rows,
                                             group * p.result_group + column,
                                             p,
                                             wanted};
    });
  }
}

}  // namespace
}  // namespace reformer
