#include "convolution.h"

#include <limits>
#include <vector>

#include "elements.h"

namespace stub {
namespace {

using Lens = std::array<int64_t, 4>;

Lens x_lens(const Problem& p) { return {p.n, p.c, p.h, p.w}; }
Lens w_lens(const Problem& p) { return {p.k, p.c / p.groups, p.r, p.s}; }
Lens y_lens(const Problem& p) { return {p.n, p.k, p.out_h, p.out_w}; }

Lens first_lens(const Problem& p) { return p.is_forward() ? w_lens(p) : y_lens(p); }
Lens second_lens(const Problem& p) { return p.direction == Direction::backward_data ? w_lens(p) : x_lens(p); }
Lens result_lens(const Problem& p) {
  return p.is_forward() ? y_lens(p) : p.direction == Direction::backward_data ? x_lens(p) : w_lens(p);
}

int64_t product(const Lens& lens) { return lens[0] * lens[1] * lens[2] * lens[3]; }

// Calls visit(index in N, C, H, W order, index in memory) of each element.
template <class Visit>
void for_each(const Lens& lens, Layout layout, Visit visit) {
  const Lens strides = packed_strides(lens, layout);
  int64_t at = 0;
  for (int64_t n = 0; n < lens[0]; ++n)
    for (int64_t c = 0; c < lens[1]; ++c)
      for (int64_t h = 0; h < lens[2]; ++h)
        for (int64_t w = 0; w < lens[3]; ++w, ++at)
          visit(at, n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3]);
}

std::vector<double> loaded(const Problem& p, const Lens& lens, const void* data) {
  std::vector<double> values(product(lens));
  for_each(lens, p.layout, [&](int64_t at, int64_t in_memory) { values[at] = load(p.type, data, in_memory); });
  return values;
}

void store_all(const Problem& p, const Lens& lens, const std::vector<double>& values, void* data) {
  for_each(lens, p.layout, [&](int64_t at, int64_t in_memory) { store(p.type, data, in_memory, values[at]); });
}

// Calls visit(of x, of w, of y) of each product that a convolution sums, as indices in N, C, H, W order.
template <class Visit>
void for_each_product(const Problem& p, Visit visit) {
  const int64_t c_of_group = p.c / p.groups, k_of_group = p.k / p.groups;
  for (int64_t n = 0; n < p.n; ++n)
    for (int64_t k = 0; k < p.k; ++k)
      for (int64_t out_h = 0; out_h < p.out_h; ++out_h)
        for (int64_t out_w = 0; out_w < p.out_w; ++out_w) {
          const int64_t y = ((n * p.k + k) * p.out_h + out_h) * p.out_w + out_w;
          for (int64_t c = 0; c < c_of_group; ++c)
            for (int64_t r = 0; r < p.r; ++r) {
              const int64_t h = out_h * p.stride[0] - p.pad[0] + r * p.dilation[0];
              if (h < 0 || h >= p.h) continue;
              for (int64_t s = 0; s < p.s; ++s) {
                const int64_t w = out_w * p.stride[1] - p.pad[1] + s * p.dilation[1];
                if (w < 0 || w >= p.w) continue;
                const int64_t channel = k / k_of_group * c_of_group + c;
                visit(((n * p.c + channel) * p.h + h) * p.w + w, ((k * c_of_group + c) * p.r + r) * p.s + s, y);
              }
            }
        }
}

}  // namespace

int64_t result_elements(const Problem& p) { return product(result_lens(p)); }
int64_t first_elements(const Problem& p) { return product(first_lens(p)); }
int64_t second_elements(const Problem& p) { return product(second_lens(p)); }

void convolve(const Problem& p, const void* first, const void* second, void* result) {
  const std::vector<double> a = loaded(p, first_lens(p), first), b = loaded(p, second_lens(p), second);
  std::vector<double> sums(result_elements(p), 0.0);
  switch (p.direction) {
    case Direction::forward:
      for_each_product(p, [&](int64_t x, int64_t w, int64_t y) { sums[y] += a[w] * b[x]; });
      break;
    case Direction::backward_data:
      for_each_product(p, [&](int64_t x, int64_t w, int64_t y) { sums[x] += a[y] * b[w]; });
      break;
    case Direction::backward_weights:
      for_each_product(p, [&](int64_t x, int64_t w, int64_t y) { sums[w] += a[y] * b[x]; });
      break;
  }
  store_all(p, result_lens(p), sums, result);
}

void poison(const Problem& p, void* result) {
  const std::vector<double> values(result_elements(p), std::numeric_limits<double>::quiet_NaN());
  store_all(p, result_lens(p), values, result);
}

}  // namespace stub
