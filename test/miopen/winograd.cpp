#include "winograd.h"

#include <algorithm>

namespace stub {
namespace {

constexpr int64_t power(int exponent) { return int64_t{1} << exponent; }
int64_t divided_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
int64_t multiple(int64_t value, int64_t of) { return divided_up(value, of) * of; }

// The convolution that the kernel sees: for the gradient of the weights the roles of batch and channels change.
struct Shader {
  int64_t n, c, h, w, k, out_h, out_w, r, s;
  int stride_h, stride_w;
};

Shader shader_of(const Problem& p) {
  const int64_t in_channels = p.in_channels() / p.groups, out_channels = p.out_channels() / p.groups;
  if (p.direction == Direction::backward_weights)
    return {out_channels, p.n, p.h, p.w, in_channels, p.r, p.s, p.out_h, p.out_w, p.dilation[0], p.dilation[1]};
  return {p.n,           in_channels, p.in_height(), p.in_width(), out_channels, p.out_height(),
          p.out_width(), p.r,         p.s,           p.stride[0],  p.stride[1]};
}

bool is_equal_stride(const Problem& p) { return p.stride[0] == p.stride[1] && p.stride[0] <= 2; }

// A gradient's padding, from the other side of the filter.
bool is_backward_padding_valid(const Problem& p) { return p.r - p.pad[0] > 0 && p.s - p.pad[1] > 0; }

bool is_each_below(std::initializer_list<int64_t> values, int64_t limit) {
  return std::all_of(values.begin(), values.end(), [&](int64_t value) { return value < limit; });
}

bool sizes_fit(const Problem& p, const Shader& x) {
  return is_each_below({x.n, x.c, x.h, x.w, x.k, x.out_h, x.out_w, x.r, x.s, p.pad[0], p.pad[1]}, power(16));
}

bool is_one_of(const std::string& architecture, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), architecture) != names.end();
}

// What the kernels of F(2,3) and F(3,2) have in common.
bool is_applicable(const Problem& p, const std::string& architecture, bool is_f3x2) {
  const bool is_half = p.type == kHalf, is_gradient = p.direction != Direction::forward;
  if (is_half && architecture.rfind("gfx94", 0) && architecture.rfind("gfx95", 0) &&
      !is_one_of(architecture, {"gfx906", "gfx908", "gfx90a"}))
    return false;
  if (is_half && is_gradient && architecture == "gfx90a" && p.fp16_alternative != 0) return false;
  if (!is_equal_stride(p)) return false;
  if (p.in_height() <= 6 && p.in_width() <= 6 && p.n <= 4 && p.in_channels() <= 4) return false;
  if (p.direction == Direction::backward_weights && p.stride[1] == 2) return false;
  if (p.direction == Direction::backward_data && !is_backward_padding_valid(p)) return false;
  const Shader x = shader_of(p);
  if (!sizes_fit(p, x) || x.k * x.r * x.s >= power(28)) return false;

  const bool is_older_kernel = is_one_of(architecture, {"gfx900", "gfx906"}) && !(is_f3x2 && p.stride[1] == 2);
  if (!is_older_kernel)
    return x.h * x.w < power(29) && (x.c + 1) * x.h * x.w < power(30) && (x.c + 1) * x.r * x.s < power(22) &&
           (x.k + 1) * x.out_h * x.out_w < power(30);
  if (x.c * x.r * x.s >= power(22)) return false;
  const int64_t of_image = x.h * x.w, of_result = x.out_h * x.out_w;
  if ((x.k + 1) * of_result < power(29) && (x.c + 1) * of_image < power(29)) return true;
  const int64_t tiles = divided_up(x.out_h, 2) * divided_up(x.out_w, 2);
  return p.stride[0] == 1 && x.k * of_result < power(30) && x.c * of_image < power(30) && (x.n == 1 || tiles % 16 == 0);
}

}  // namespace

bool winograd_rxs(const Problem& p, const std::string& architecture) {
  const bool is_half = p.type == kHalf, is_weights = p.direction == Direction::backward_weights;
  if (is_weights && (is_half || p.stride[0] != 1 || p.stride[1] != 1)) return false;
  if (!is_one_of(architecture, {"gfx906", "gfx908"}) && (is_half || architecture != "gfx900")) return false;
  if (!is_equal_stride(p)) return false;
  if (p.direction != Direction::forward && !is_backward_padding_valid(p)) return false;

  const Shader x = shader_of(p);
  const int64_t tile = is_weights ? 2 : 3;
  const bool has_narrow_filter = x.stride_w == 1 && x.s <= tile;
  const int64_t padded_s = has_narrow_filter ? tile : multiple(x.s, 2 * tile);
  const int64_t padded_r = multiple(x.r, x.stride_h == 1 || x.r % (2 * tile) == 1 ? tile : 2 * tile);
  if (x.c % ((is_half ? 2 : 1) * (has_narrow_filter ? 2 : 1))) return false;

  const bool is_dilated = p.direction == Direction::backward_data && x.stride_w != 1;
  if (is_half) {
    const int64_t pieces = (divided_up(x.r, 2 * tile) + (x.r + tile + 1) / (2 * tile)) * divided_up(x.s, 2 * tile);
    if (is_dilated && (x.c % 4 || x.c * pieces < 36)) return false;
    if (padded_r * padded_s * x.c < tile * tile * 36) return false;
  } else {
    if (is_dilated && (x.r == 1 || x.c % 2)) return false;
    if (padded_r / tile * (padded_s / (is_dilated ? 2 * tile : tile)) * x.c < 18) return false;
  }
  return sizes_fit(p, x) && x.c * x.h * x.w <= power(28) && x.out_h * x.out_w <= power(23) &&
         x.k * x.out_h * x.out_w <= power(28) && x.k * x.r * x.s <= power(28) && x.c * x.r * x.s <= power(28);
}

bool winograd_rxs_f3x2(const Problem& p, const std::string& architecture) {
  return is_applicable(p, architecture, true);
}

bool winograd_rxs_f2x3(const Problem& p, const std::string& architecture) {
  return is_applicable(p, architecture, false);
}

}  // namespace stub
