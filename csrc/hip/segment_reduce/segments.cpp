#include "segments.h"

#include <algorithm>
#include <limits>
#include <string>

#include "hip/devices.h"
#include "hip/typed_kernel.h"

namespace reformer {
namespace {

constexpr int kMostAcross = 65535;  // blocks along y
constexpr int kUsualEntries = 16;   // of a row, that a lane adds up one after another

const gpu::Kernel* kernel_of(const char* type, int elements) {
  static const TypedKernel kernels[] = {
#define X(T, count) \
  {#T, "", count, gpu::Kernel({"segment_reduce/segments", "segment_sum_" #T "_" #count, #T ", " #count})},
#include "segments.inc"
#undef X
  };
  return find_kernel(kernels, type, "", elements);
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

Planned<SegmentSumConfig> configure_segment_sum(DType type, int64_t entries, int64_t rows, int64_t columns,
                                                const std::string& arch) {
  if (type == DType::fp64) return "it computes in fp32";
  if (const char* why = gpu::unavailable(arch)) return why;
  if (std::max({entries, rows, columns}) > std::numeric_limits<int32_t>::max() / 2) return "it is too large";
  const int most = int(16 / element_size(type)), elements = columns % most ? 1 : most, warp = warp_size(arch);
  const int groups = ceil_div(int(columns), elements), units = usual_units(arch);
  SegmentSumConfig config;
  SegmentSumArgs& a = config.args;
  a.rows = int(rows), a.columns = int(columns);
  while (1 << a.log_across < std::min(groups, warp)) ++a.log_across;
  const auto blocks = [&] { return ceil_div(a.rows, kSegmentThreads >> (a.log_across + a.log_side)); };
  // Rows with many entries get more lanes, so that warps have fewer rows.
  while (1 << (a.log_across + a.log_side) < warp &&
         (entries > (rows * kUsualEntries << a.log_side) || blocks() < kSegmentBlocks * units))
    ++a.log_side;
  // If rows are still too few, multiprocessors divide their columns among themselves.
  const int chunks = ceil_div(groups, 1 << a.log_across);
  const int along = std::clamp(ceil_div(kSegmentBlocks * units, blocks()), 1, std::min(chunks, kMostAcross));
  a.columns_each = ceil_div(chunks, along) * (elements << a.log_across);
  config.launch.blocks_x = uint32_t(blocks());
  config.launch.blocks_y = uint32_t(ceil_div(a.columns, a.columns_each));
  config.launch.threads = kSegmentThreads;
  config.launch.pdl = true;
  config.kernel = kernel_of(kernel_type(type), elements);
  return config;
}

}  // namespace reformer
