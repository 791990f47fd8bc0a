#include "transpose.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace reformer {
namespace {

constexpr int64_t kMostMatrices = 65535;  // per launch, along y

struct Dimension {
  int64_t size, from, to;  // from, to: strides
};

// Dimensions of more than one element, the result's innermost first. Dimensions that are contiguous on both sides are
// merged.
std::vector<Dimension> joined(const int64_t* sizes, const int64_t* strides, int64_t dimensions) {
  std::vector<Dimension> found;
  int64_t expected = 1;
  for (int64_t d = dimensions; d-- > 0; expected *= sizes[d]) {
    if (sizes[d] == 1) continue;
    if (!found.empty() && found.back().from * found.back().size == strides[d])
      found.back().size *= sizes[d];
    else
      found.push_back({sizes[d], strides[d], expected});
  }
  return found;
}

const gpu::Kernel& kernel_of(int64_t bytes, bool by_vectors) {
  static const gpu::Kernel kernels[] = {
#define X(bits, count) gpu::Kernel({"copy/transpose", "transpose_" #bits "_" #count, #bits ", " #count}),
#include "transpose.inc"
#undef X
  };
  return kernels[(bytes == 4 ? 2 : 0) + (by_vectors ? 0 : 1)];
}

}  // namespace

Planned<TransposeConfig> configure_transpose(const int64_t* sizes, const int64_t* strides, int64_t dimensions,
                                             int64_t bytes, int64_t alignment) {
  if (bytes != 2 && bytes != 4) return "its elements are not of two or four bytes";
  std::vector<Dimension> all = joined(sizes, strides, dimensions);
  const auto adjacent = std::find_if(all.begin(), all.end(), [](const Dimension& each) { return each.from == 1; });
  if (all.size() < 2 || all.size() > 5 || adjacent == all.begin() || adjacent == all.end())
    return "what is adjacent stays so, or nothing was";
  const Dimension lines = all.front(), columns = *adjacent;
  all.erase(adjacent);
  all.erase(all.begin());
  if (std::min(lines.size, columns.size) < kTransposeTile / 8) return "its lines are short";
  int64_t matrices = 1;
  TransposeConfig config;
  TransposeArgs& a = config.args;
  const int64_t count = 16 / bytes;
  bool by_vectors = alignment % 16 == 0 && lines.size % count == 0 && columns.size % count == 0;
  by_vectors = by_vectors && lines.from % count == 0 && columns.to % count == 0;
  for (size_t i = 0; i < 3; ++i) {
    const Dimension digit = i < all.size() ? all[i] : Dimension{1, 0, 0};
    matrices *= digit.size;
    a.from_stride[i] = digit.from, a.to_stride[i] = digit.to;
    by_vectors = by_vectors && digit.from % count == 0 && digit.to % count == 0;
    if (i < 2) a.by_digit[i] = make_divider(int(std::min<int64_t>(digit.size, kMostMatrices + 1)));
  }
  const int64_t along = (columns.size + kTransposeTile - 1) / kTransposeTile;
  const int64_t down = (lines.size + kTransposeTile - 1) / kTransposeTile;
  if (matrices > kMostMatrices || along * down > std::numeric_limits<int32_t>::max() / kTransposeTile)
    return "it is too large";
  a.lines = int(lines.size), a.columns = int(columns.size);
  a.from_pitch = lines.from, a.to_pitch = columns.to;
  a.by_along = make_divider(int(along));
  config.launch.blocks_x = uint32_t(along * down);
  config.launch.blocks_y = uint32_t(matrices);
  config.launch.threads = kTransposeThreads;
  config.launch.pdl = true;
  config.kernel = &kernel_of(bytes, by_vectors);
  return config;
}

}  // namespace reformer
