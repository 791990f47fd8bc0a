// The sums that a block of an implicit GEMM computes, for all kinds of matrix instructions.
#pragma once

#include "../device/mma.h"

namespace reformer {

// The sums of a block of warps, kAcross of them side by side, each with kRows x kColumns sums. A step's tiles are
// multiplied in kParts parts; meanwhile() is called after the loads of the first part.
template <class T, int kRows, int kColumns, int kAcross, int kParts>
class WarpSums {
  using Tile = WarpTile<T, kRows, kColumns>;
  Tile tile_;
  const int column_ = warp_id() % kAcross * kColumns;

 public:
  const int row = warp_id() / kAcross * kRows;

  // To be called before the first step.
  DEVICE void clear() { tile_.clear(); }
  // To be called after this thread's copies have arrived, and before the barrier.
  DEVICE static void publish() {}
  // Fragments of the next part are loaded before the current part is multiplied.
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
  // To be called after the last step.
  DEVICE void finish() {}
  // Stores the warp's sums, from its first row on.
  DEVICE void store(float* to, int pitch) const { tile_.store(to + column_, pitch); }
  // Visits pieces of rows in registers (NVIDIA; see mma_sync.h). columns: number of the block's columns to visit.
  template <int kElements, class OfColumns>
  DEVICE void for_each_piece(int columns, OfColumns of_columns) const {
    tile_.template for_each_piece<kElements>(columns - column_,
                                             [&](int column) { return of_columns(column_ + column); });
  }
};

// True if warps that have 16 rows and all columns form warpgroups, and there are instructions for these.
constexpr bool are_groups(int warp_rows, int down, int across, int columns, int bytes) {
  return warp_rows == 16 && down % 4 == 0 && across == 1 && columns % 64 == 0 && bytes == 2;
}
template <bool kGroups, class T, int kRows, int kColumns, int kAcross, int kParts, int kLag>
struct SumsOf {
  using type = WarpSums<T, kRows, kColumns, kAcross, kParts>;
};
#if defined(REFORMER_WGMMA_GROUPS)
constexpr bool kHasGroups = true;
// kLag: steps that are still being multiplied when the next one begins.
template <class T, int kColumns, int kLag>
class GroupSums {
  GroupTile<T, kColumns> tile_;
  const int group_ = wgmma::group_id();

 public:
  const int row = warp_id() * 16;

  DEVICE void clear() { tile_.clear(); }
  DEVICE static void publish() { wgmma::publish(); }
  template <class TileA, class TileB, class Function>
  DEVICE void multiply(const TileA& a, const TileB& b, Function meanwhile) {
    tile_.start(a, group_ * 64, b);
    if constexpr (kLag) wgmma::wait<kLag>();
    meanwhile();
    if constexpr (!kLag) wgmma::wait<0>();
  }
  DEVICE void finish() { tile_.finish(); }
  DEVICE void store(float* to, int pitch) const { tile_.store(to, pitch); }
  template <int kElements, class OfColumns>
  DEVICE void for_each_piece(int columns, OfColumns of_columns) const {
    tile_.template for_each_piece<kElements>(columns, of_columns);
  }
};
template <class T, int kRows, int kColumns, int kAcross, int kParts, int kLag>
struct SumsOf<true, T, kRows, kColumns, kAcross, kParts, kLag> {
  using type = GroupSums<T, kColumns, kLag>;
};
#else
constexpr bool kHasGroups = false;
#endif

}  // namespace reformer
