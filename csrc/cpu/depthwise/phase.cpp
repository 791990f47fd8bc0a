#include "phase.h"

#include <algorithm>
#include <numeric>

namespace reformer::depthwise {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }  // b > 0

// Parameters of the convolution along one axis.
struct Geometry {
  int64_t size, out, filter, pad, stride, dilation;
};

Axis forward_axis(const Geometry& g) {
  return {g.size, g.out, {Phase{0, 1, g.out, 0, 1, g.filter, -g.pad, g.stride, g.dilation}}};
}

// x[i] sums w[f] * y[(i + pad - f * dilation) / stride] over the f for which the division is exact: for all i of one
// residue these are every (stride / gcd)-th tap. The taps are taken in reverse, so that the source index grows with
// them.
Axis input_grad_axis(const Geometry& g) {
  Axis axis{g.out, g.size, {}};
  const int64_t common = std::gcd(g.stride, g.dilation), tap_step = g.stride / common, step = g.dilation / common;
  for (int64_t residue = 0; residue < std::min(g.stride, g.size); ++residue) {
    Phase phase{residue, g.stride, (g.size - residue + g.stride - 1) / g.stride, 0, -tap_step, 0, 0, 1, step};
    int64_t first = 0;
    while (first < std::min(tap_step, g.filter) && (residue + g.pad - first * g.dilation) % g.stride != 0) ++first;
    if (first < std::min(tap_step, g.filter)) {
      phase.tap_count = (g.filter - first + tap_step - 1) / tap_step;
      phase.tap_first = first + (phase.tap_count - 1) * tap_step;
      phase.in_first = (residue + g.pad - phase.tap_first * g.dilation) / g.stride;
    }
    axis.phases.push_back(phase);
  }
  return axis;
}

Axis axis_of(Direction direction, const Geometry& g) {
  return direction == Direction::forward ? forward_axis(g) : input_grad_axis(g);
}

}  // namespace

int64_t Phase::first_t(int64_t position) const {
  return std::clamp(ceil_div(position - out_first, out_step), int64_t{0}, out_count);
}

Range inside(int64_t first, int64_t step, int64_t count, int64_t size) {
  const int64_t begin = std::clamp(ceil_div(-first, step), int64_t{0}, count);
  return {begin, std::clamp(ceil_div(size - first, step), begin, count)};
}

Range Axis::source(Range out) const {
  Range all{in_size, 0};
  for (const Phase& phase : phases) {
    const int64_t begin = phase.first_t(out.begin), end = phase.first_t(out.end);
    if (begin == end || phase.tap_count == 0) continue;
    all.begin = std::min(all.begin, phase.in(begin, 0));
    all.end = std::max(all.end, phase.in(end - 1, phase.tap_count - 1) + 1);
  }
  all.begin = std::clamp(all.begin, int64_t{0}, in_size);
  return {all.begin, std::clamp(all.end, all.begin, in_size)};
}

Axis height_axis(const ConvProblem& p) {
  return axis_of(p.direction, {p.h, p.out_h(), p.r, p.pad_h, p.stride_h, p.dilation_h});
}

Axis width_axis(const ConvProblem& p) {
  return axis_of(p.direction, {p.w, p.out_w(), p.s, p.pad_w, p.stride_w, p.dilation_w});
}

}  // namespace reformer::depthwise
