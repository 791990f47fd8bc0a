// Splits products into parts for the threads; part of gemm.h.
namespace reformer::REFORMER_ISA {

// Index of one of the parts of a product, independent of the product's size.
struct PartIndex {
  GemmGrid grid;
  int64_t m, n;  // position in the grid

  template <class S>
  GemmPart of(int64_t rows, int64_t cols, int64_t depth) const {
    return grid.part(m, n, rows, cols, depth, kTileRows, kTileCols<S>);
  }
};

// Calls body(group, index) for the parts of each group's product; their size is about this.
template <class S, class Body>
void for_each_part(int64_t groups, int64_t rows, int64_t cols, int32_t threads, const Body& body) {
  const GemmGrid grid = GemmGrid::choose(rows, cols, kTileRows, kTileCols<S>, ceil_div(threads, groups));
  parallel_for(groups * grid.parts(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      body(i / grid.parts(), PartIndex{grid, i % grid.parts() / grid.n_parts, i % grid.n_parts});
  });
}

// result[i] = sum of partial[part * count + i] over the parts in order.
template <class S, class T>
void add_parts(T* result, const S* partial, int64_t count, int64_t parts) {
  constexpr int64_t block = 512;
  parallel_for((count + block - 1) / block, 32, [&](int64_t begin, int64_t end) {
    S sum[block + kLanes<S>];
    for (int64_t first = begin * block; first < std::min(count, end * block); first += block) {
      const int size = int(std::min(block, count - first));
      widen(sum, partial + first, size);
      for (int64_t part = 1; part < parts; ++part)
        for (int i = 0; i < size; ++i) sum[i] += partial[part * count + first + i];
      narrow(result + first, sum, size);
    }
  });
}

}  // namespace reformer::REFORMER_ISA
