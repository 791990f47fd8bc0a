// The size of the register tile for the instruction set being compiled. No include guard: part of an ISA body.
// Accumulators, one row of B and one broadcast fill the registers (32 with AVX-512, else 16), and there are enough
// accumulators to hide the latency of an FMA even if a tile is only one vector wide.
namespace reformer::REFORMER_ISA {

#if defined(REFORMER_ISA_AVX512)
constexpr int kTileRows = 8, kTileVectors = 3;
#elif defined(REFORMER_ISA_AVX2)
constexpr int kTileRows = 4, kTileVectors = 3;
#else
constexpr int kTileRows = 4, kTileVectors = 2;
#endif
constexpr int kCascadeTileRows = 4;  // two accumulators per element
template <class S>
constexpr int kTileCols = kTileVectors * kLanes<S>;

// The sum is split into equal parts of at most this length, so that panels of both operands fit the caches.
template <class S>
constexpr int64_t kMaxDepth = 4096 / int64_t(sizeof(S));

}  // namespace reformer::REFORMER_ISA
