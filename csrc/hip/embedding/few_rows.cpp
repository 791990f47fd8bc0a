#include "few_rows.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "hip/devices.h"
#include "hip/typed_kernel.h"

namespace reformer {
namespace {

constexpr int kBlocks = 4;                           // of a multiprocessor
constexpr int kAcross = 32;                          // columns of a block, at most
constexpr int kMostRows = 1 << 10;                   // with this and kMostElements goes scatter_reduce.py
constexpr int kFewRows = 256, kManyIds = 1 << 14;    // more rows with fewer ids are better divided among blocks
constexpr int64_t kMostElements = int64_t{1} << 15;  // of a table: larger ones have enough work for a block a row
constexpr int kUsualEntries = 8;                     // of a thread, at least
constexpr int kMostCopied = kFewRowsFloats / kFewRowsThreads;  // rows of which all threads can have a copy
constexpr int kMostCopiedAcross = 192;  // likewise a quarter of them, which suffices if entries are not adjacent

const gpu::Kernel* kernel_of(const char* type, const char* ids) {
  static const TypedKernel kernels[] = {
#define X(T, Id) {#T, #Id, 1, gpu::Kernel({"embedding/few_rows", "few_rows_" #T "_" #Id, #T ", " #Id})},
#include "few_rows.inc"
#undef X
  };
  return find_kernel(kernels, type, ids, 1);
}

const gpu::Kernel* more_kernel_of(const char* type, const char* ids) {
  static const TypedKernel kernels[] = {
#define X(T, Id) {#T, #Id, 1, gpu::Kernel({"embedding/more_rows", "more_rows_" #T "_" #Id, #T ", " #Id})},
#include "more_rows.inc"
#undef X
  };
  return find_kernel(kernels, type, ids, 1);
}

const gpu::Kernel* add_kernel_of(const char* type) {
  static const TypedKernel kernels[] = {
#define X(T) {#T, "", 1, gpu::Kernel({"embedding/add_tables", "add_tables_" #T, #T})},
#include "add_tables.inc"
#undef X
  };
  return find_kernel(kernels, type, "", 1);
}

int ceil_div(int64_t a, int64_t b) { return int((a + b - 1) / b); }

bool are_adjacent(const FewRowsArgs& a) { return a.entry_stride == 1 && a.column_stride != 1; }

// Each thread has a copy of its column. Returns the blocks along y, and the fewest entries of a block.
std::pair<int, int> share_by_threads(FewRowsArgs& a) {
  // For coalesced reads. If no dimension is adjacent, columns are more likely to be near each other.
  a.entries_adjacent = are_adjacent(a);
  const int room = std::min(kFewRowsThreads, kFewRowsFloats / a.rows);  // threads that can have a column of their own
  a.pitch = room < 32 ? room : room / 32 * 32;
  const int tiles = ceil_div(a.columns, std::min(kAcross, a.pitch));
  a.across = ceil_div(a.columns, tiles);
  a.side = a.pitch / a.across;
  return {tiles, std::max(a.rows / 4, a.side * kUsualEntries)};
}

// Each warp has columns of its own. Returns the same.
std::pair<int, int> share_by_warps(FewRowsArgs& a, int warp) {
  a.pitch = a.rows | 1;
  const int tiles = ceil_div(a.columns, kFewRowsFloats / a.pitch);
  a.across = ceil_div(a.columns, tiles);
  a.warps = std::min(a.across, kMoreRowsThreads / warp);
  while (1 << a.bits < a.rows) ++a.bits;
  return {tiles, std::max(a.rows / 2, 2 * warp)};
}

}  // namespace

Planned<FewRowsConfig> configure_few_rows(DType type, bool wide_ids, int64_t count, int64_t rows, int64_t columns,
                                          int64_t entry_stride, int64_t column_stride, const std::string& arch) {
  if (type == DType::fp64) return "it computes in fp32";
  if (const char* why = gpu::unavailable(arch)) return why;
  if (rows > (count < kManyIds ? kFewRows : kMostRows) || rows * columns > kMostElements)
    return "the table is too large";
  if (count > std::numeric_limits<int32_t>::max() / 2) return "there are too many ids";

  FewRowsConfig config;
  FewRowsArgs& a = config.args;
  a.count = int(count), a.rows = int(rows), a.columns = int(columns);
  a.entry_stride = entry_stride, a.column_stride = column_stride;
  const int warp = warp_size(arch);
  const bool by_warps = a.rows > (are_adjacent(a) ? kMostCopied : kMostCopiedAcross);
  const auto [tiles, least] = by_warps ? share_by_warps(a, warp) : share_by_threads(a);
  // Blocks' tables should not be many times the entries.
  const int64_t wanted = int64_t{usual_units(arch)} * kBlocks / tiles;
  const int64_t blocks = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, count / least));
  a.entries_each = std::max(1, ceil_div(count, blocks));
  config.launch.blocks_x = uint32_t(std::max(1, ceil_div(count, a.entries_each)));
  config.launch.blocks_y = uint32_t(tiles);
  config.launch.threads = uint32_t(by_warps ? a.warps * warp : kFewRowsThreads);
  const int floats = by_warps ? a.across * a.pitch : a.rows * a.pitch;
  config.launch.shared_bytes = uint32_t((floats * 4 + 15) / 16 * 16);
  config.launch.pdl = true;
  config.kernel = (by_warps ? more_kernel_of : kernel_of)(kernel_type(type), wide_ids ? "int64" : "int32");
  if (config.launch.blocks_x == 1) return config;

  config.add.count = int(config.launch.blocks_x), config.add.elements = a.rows * a.columns;
  config.parts_floats = int64_t{config.add.count} * config.add.elements;
  config.add_launch.blocks_x = uint32_t(ceil_div(config.add.elements, kAddTablesCells));
  config.add_launch.threads = kAddTablesCells * kAddTablesSlices;
  config.add_launch.pdl = true;
  config.add_kernel = add_kernel_of(kernel_type(type));
  return config;
}

}  // namespace reformer
