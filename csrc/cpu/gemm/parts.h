// Products split into parts for the threads, as part of gemm.h.
namespace reformer::REFORMER_ISA {

// One of the parts that a product is split into, whatever its size.
struct PartIndex {
  GemmGrid grid;
  int64_t m, n;  // position in the grid

  template <class S>
  GemmPart of(int64_t rows, int64_t cols, int64_t depth) const {
    return grid.part(m, n, rows, cols, depth, kTileRows, kTileCols<S>);
  }
};

// body(group, index) computes a part of one group's product of about this size.
template <class S, class Body>
void for_each_part(int64_t groups, int64_t rows, int64_t cols, int32_t threads, const Body& body) {
  const GemmGrid grid = GemmGrid::choose(rows, cols, kTileRows, kTileCols<S>, ceil_div(threads, groups));
  parallel_for(groups * grid.parts(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      body(i / grid.parts(), PartIndex{grid, i % grid.parts() / grid.n_parts, i % grid.n_parts});
  });
}

// result[i] = the sum of partial[part * count + i] over the parts, in their order.
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
