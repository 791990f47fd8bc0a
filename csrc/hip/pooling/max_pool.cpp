#include "max_pool.h"

#include <algorithm>
#include <limits>

#include "hip/typed_kernel.h"

namespace reformer {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 4;

const gpu::Kernel* kernel_of(const char* type, bool is_forward, int elements) {
  static const TypedKernel kernels[] = {
#define X(direction, T, count) \
  {#T, #direction, count,      \
   gpu::Kernel({"pooling/max_pool", "max_pool_" #direction "_" #T "_" #count, #direction ", " #T ", " #count})},
#include "max_pool.inc"
#undef X
  };
  return find_kernel(kernels, type, is_forward ? "forward" : "backward", elements);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

PoolAxis axis_of(const PoolSizes& of) {
  return {int(of.size),
          int(of.outputs),
          int(of.window),
          int(of.stride),
          int(of.padding),
          int(of.dilation),
          make_divider(int(of.stride)),
          make_divider(int(of.dilation))};
}

}  // namespace

Planned<MaxPoolConfig> configure_max_pool(bool is_forward, DType type, Layout layout, int64_t images, int64_t channels,
                                          const PoolSizes& rows, const PoolSizes& columns, const std::string& arch) {
  if (type == DType::fp64) return "it computes in fp32";
  if (rows.window * columns.window > kMostPlaces) return "a window has more places than a byte tells apart";
  for (const PoolSizes& each : {rows, columns})
    if (std::max({each.size, each.outputs * each.stride, each.padding, each.window * each.dilation}) > kMost)
      return "it is too large";
  if (layout == Layout::nchw) images *= channels, channels = 1;
  // Within an image addresses have 32 bits.
  const int64_t pixels = std::max(rows.size * columns.size, rows.outputs * columns.outputs);
  if (images > kMost || channels > kMost || pixels > kMost / channels) return "it is too large";
  if (const char* why = gpu::unavailable(arch)) return why;

  const int most = int(16 / element_size(type)), elements = channels % most ? 1 : most;
  const auto items_of = [&](const PoolSizes& of) { return is_forward ? of.outputs : ceil_div(of.size, kMaxPoolTile); };
  const int64_t vectors = channels / elements, across = items_of(columns), down = items_of(rows);
  const int64_t each = vectors * across * down;  // threads per image

  MaxPoolConfig config;
  MaxPoolArgs& a = config.args;
  a.rows = axis_of(rows), a.columns = axis_of(columns);
  a.by_channels = make_divider(int(vectors)), a.by_columns = make_divider(int(across));
  a.by_rows = make_divider(int(down));
  a.channels = int(channels), a.images = int(images);
  a.of_image = int(rows.size * columns.size * channels), a.of_result = int(rows.outputs * columns.outputs * channels);
  a.images_each = int(std::clamp<int64_t>(kMost / each, 1, images));
  config.launch.blocks_x = uint32_t(ceil_div(a.images_each * each, kMaxPoolThreads));
  config.launch.blocks_y = uint32_t(ceil_div(images, a.images_each));
  config.launch.threads = kMaxPoolThreads;
  config.launch.pdl = true;
  if (config.launch.blocks_y > 65535) return "it is too large";
  config.kernel = kernel_of(kernel_type(type), is_forward, elements);
  return config;
}

}  // namespace reformer
