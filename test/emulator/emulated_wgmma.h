// wgmma, by a warp of the emulator: its 16 of a group's 64 rows. Included by mma_wgmma.h, whose words on who holds what
// are followed here.
//
// The product is computed when it is waited for, and what it reads must not have changed since it was started. That all
// four warps of a group take part is not asked for.
#pragma once

#include <cstring>
#include <deque>
#include <vector>

#include "emulated_matrix.h"

namespace reformer {
namespace emulator {

// What a lane gives to a product, with tiles as OperandTile has them.
struct ProductLane {
  const unsigned char *a, *b;
  int row;
  float* sums;  // [blocks][columns / 8][4]
  int warp;
  Place place;
};

// One under way.
struct Product {
  void (*finish)(const Product&);
  ProductLane lanes[kWarp];
  std::vector<unsigned char> a, b;  // when it was started
};
std::deque<Product>& products_of(int warp);

template <class T, int kColumns, int kBlocks, class TileA, class TileB>
void finish_product(const Product& product) {
  const ProductLane& first = product.lanes[0];
  if (memcmp(first.a, product.a.data(), TileA::kBytes) || memcmp(first.b, product.b.data(), TileB::kBytes))
    fail(first.place, "an operand was written to after the product was started, and before it was waited for");
  constexpr int kDepth = TileA::kAlongDepth ? TileA::kLineBytes / int(sizeof(T)) : TileA::kLineCount;
  const TileA tile_a{const_cast<unsigned char*>(first.a)};
  const TileB tile_b{const_cast<unsigned char*>(first.b)};
  std::vector<float> a(kBlocks * 16 * kDepth), b(kColumns * kDepth);
  for (int k = 0; k < kDepth; ++k) {
    for (int row = 0; row < kBlocks * 16; ++row)
      a[row * kDepth + k] = to_float(*tile_a.at(first.row + row / 16 * 64 + first.warp % 4 * 16 + row % 16, k));
    for (int column = 0; column < kColumns; ++column) b[column * kDepth + k] = to_float(*tile_b.at(column, k));
  }
  for (int lane = 0; lane < kWarp; ++lane)
    for (int i = 0; i < kBlocks * kColumns / 2; ++i) {
      const int block = i / (kColumns / 2), pair = i % (kColumns / 2) / 4;
      const float* const row = &a[(block * 16 + lane / 4 + i % 4 / 2 * 8) * kDepth];
      const float* const column = &b[(pair * 8 + lane % 4 * 2 + i % 2) * kDepth];
      float sum = product.lanes[lane].sums[i];
      for (int k = 0; k < kDepth; ++k) sum += row[k] * column[k];
      product.lanes[lane].sums[i] = sum;
    }
}

template <class T, int kColumns, int kBlocks, class TileA, class TileB>
void start_product(ProductLane* const* lanes) {
  const ProductLane& first = *lanes[0];
  Product product{&finish_product<T, kColumns, kBlocks, TileA, TileB>, {}, {first.a, first.a + TileA::kBytes}, {}};
  product.b.assign(first.b, first.b + TileB::kBytes);
  for (int lane = 0; lane < kWarp; ++lane) {
    product.lanes[lane] = *lanes[lane];
    if (lanes[lane]->a != first.a || lanes[lane]->b != first.b || lanes[lane]->row != first.row)
      fail(first.place, "the lanes of a warp have different operands");
  }
  products_of(first.warp).push_back(std::move(product));
}

// kColumns columns' sums += a's kBlocks times 64 rows, from `row` on, times b.
template <class T, int kColumns, int kBlocks, class TileA, class TileB>
void start_product(const TileA& a, int row, const TileB& b, float (&sums)[kBlocks][kColumns / 8][4],
                   const Place& place) {
  if (reinterpret_cast<uintptr_t>(a.memory) % 1024 || reinterpret_cast<uintptr_t>(b.memory) % 1024)
    fail(place, "an operand does not begin at a multiple of 1024 bytes");
  ProductLane lane{a.memory, b.memory, row, sums[0][0], position.thread / kWarp, place};
  collective<ProductLane, &start_product<T, kColumns, kBlocks, TileA, TileB>>(place, lane);
}

struct WaitForProducts {
  int warp, pending;
};
inline void wait_for_products(WaitForProducts* const* lanes) {
  std::deque<Product>& own = products_of(lanes[0]->warp);
  for (; own.size() > size_t(lanes[0]->pending); own.pop_front()) own.front().finish(own.front());
}
inline void wait_for_products(int pending, const Place& place) {
  WaitForProducts call{position.thread / kWarp, pending};
  collective<WaitForProducts, &wait_for_products>(place, call);
}

}  // namespace emulator

namespace wgmma {

inline void publish() {}
inline int group_id() { return thread_id() / 128; }
template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}
template <int kPending>
void wait(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulator::wait_for_products(kPending, {"wgmma::wait", file, line});
}

}  // namespace wgmma
}  // namespace reformer
