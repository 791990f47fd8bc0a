#include "few_rows.h"

#include <algorithm>
#include <limits>
#include <string>

#include "hip/devices.h"
#include "hip/typed_kernel.h"

namespace reformer {
namespace {

constexpr int kAcross = 32;                          // columns of a block, at most
constexpr int kMostRows = 1 << 10;                   // with this and kMostElements goes scatter_reduce.py
constexpr int kFewRows = 256, kManyIds = 1 << 14;    // more rows with fewer ids are better divided among blocks
constexpr int64_t kMostElements = int64_t{1} << 15;  // of a table: larger ones have enough work for a block a row
constexpr int kUsualEntries = 8;                     // of a thread, at least

const gpu::Kernel* kernel_of(const char* type, const char* ids) {
  static const TypedKernel kernels[] = {
#define X(T, Id) {#T, #Id, 1, gpu::Kernel({"embedding/few_rows", "few_rows_" #T "_" #Id, #T ", " #Id})},
#include "few_rows.inc"
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
  // For coalesced reads. If no dimension is adjacent, columns are more likely to be near each other.
  a.entries_adjacent = entry_stride == 1 && column_stride != 1;
  const int room = std::min(kFewRowsThreads, kFewRowsFloats / a.rows);  // threads that can have a column of their own
  a.pitch = room < 32 ? room : room / 32 * 32;
  const int tiles = ceil_div(columns, std::min(kAcross, a.pitch));
  a.across = ceil_div(columns, tiles);
  a.side = a.pitch / a.across;
  // Fewer threads that read leave room for more blocks; their tables should not be many times the entries.
  const int64_t wanted = int64_t{usual_units(arch)} * (a.pitch > kFewRowsThreads / 2 ? 2 : 4);
  const int64_t least = std::max(a.rows / 4, a.side * kUsualEntries);  // entries of a block
  const int64_t blocks = std::clamp<int64_t>(wanted / tiles, 1, std::max<int64_t>(1, count / least));
  a.entries_each = std::max(1, ceil_div(count, blocks));
  config.launch.blocks_x = uint32_t(std::max(1, ceil_div(count, a.entries_each)));
  config.launch.blocks_y = uint32_t(tiles);
  config.launch.threads = kFewRowsThreads;
  config.launch.shared_bytes = uint32_t((a.rows * a.pitch * 4 + 15) / 16 * 16);
  config.launch.pdl = true;
  config.kernel = kernel_of(kernel_type(type), wide_ids ? "int64" : "int32");
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
