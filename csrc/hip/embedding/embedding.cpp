#include "embedding.h"

#include <algorithm>
#include <limits>
#include <string>

#include "hip/devices.h"
#include "hip/typed_kernel.h"

namespace reformer {
namespace {

// Blocks read all ids, at most twice. With more bytes of ids, PyTorch's kernels, which sort them, are faster.
constexpr int64_t kMostScanned = int64_t{1} << 29;
constexpr int64_t kMostY = 65535;               // blocks along y
constexpr int64_t kCached = int64_t{32} << 20;  // bytes that a second-level cache may still have for the next kernels

const gpu::Kernel* kernel_of(const char* type, const char* ids, int elements) {
  static const TypedKernel kernels[] = {
#define X(T, Id, count) \
  {#T, #Id, count,      \
   gpu::Kernel({"embedding/embedding", "embedding_grad_" #T "_" #Id "_" #count, #T ", " #Id ", " #count})},
#include "embedding.inc"
#undef X
  };
  return find_kernel(kernels, type, ids, elements);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Planned<EmbeddingGradConfig> configure_embedding_grad(DType type, bool wide_ids, int64_t tables, int64_t count,
                                                      int64_t rows, int64_t columns, const std::string& arch) {
  if (type == DType::fp64) return "it computes in fp32";
  if (const char* why = gpu::unavailable(arch)) return why;
  const int most = int(16 / element_size(type)), elements = columns % most ? 1 : most;
  const int64_t chunk = int64_t{warp_size(arch)} * elements, chunks = ceil_div(columns, chunk);
  const int64_t fewest = ceil_div(chunks, kEmbeddingChunks);  // blocks along y
  if (std::max({tables * count, tables * rows, columns}) > std::numeric_limits<int32_t>::max() / 2 || fewest > kMostY)
    return "it is too large";
  const int64_t wanted = int64_t{kEmbeddingBlocks} * usual_units(arch);  // blocks, which all run at once

  EmbeddingGradConfig config;
  EmbeddingGradArgs& a = config.args;
  a.count = int(count), a.rows = int(rows), a.columns = int(columns);
  const int64_t groups = std::clamp<int64_t>(wanted / (tables * fewest), 1, rows);
  a.groups = int(std::max(groups, ceil_div(rows, kEmbeddingRows)));
  a.by_groups = make_divider(a.groups);
  a.is_large = tables * rows * columns * element_size(type) > kCached;
  const int64_t blocks = tables * a.groups;
  a.columns_each = int(ceil_div(chunks, std::clamp(wanted / blocks, fewest, chunks)) * chunk);
  config.launch.blocks_x = uint32_t(blocks);
  config.launch.blocks_y = uint32_t(ceil_div(columns, a.columns_each));
  config.launch.threads = kEmbeddingThreads;
  config.launch.pdl = true;
  if (2 * blocks * config.launch.blocks_y * count * (wide_ids ? 8 : 4) > kMostScanned) return "there are too many ids";
  config.kernel = kernel_of(kernel_type(type), wide_ids ? "int64" : "int32", elements);
  return config;
}

}  // namespace reformer
