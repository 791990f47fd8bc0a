#include "plan.h"

#include <algorithm>

namespace reformer {
namespace {

constexpr int64_t kSlack = 16;                      // lanes of the widest vector: what a kernel may read beyond a strip
constexpr int64_t kStripNumel = int64_t{32} << 10;  // 128 KiB of fp32: a part of the L2 cache

int32_t ceil_div(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

}  // namespace

DirectAxis DirectAxis::of_source(int32_t out, int32_t filter, int32_t pad, int32_t stride, int32_t dilation) {
  DirectAxis axis{out, stride, 1, pad, 0, {}, {{}}};
  for (int32_t tap = 0; tap < filter; ++tap) {
    const int32_t phase = tap * dilation % stride, shift = tap * dilation / stride;
    auto found = std::find(axis.phases.begin(), axis.phases.end(), phase);
    if (found == axis.phases.end()) found = axis.phases.insert(found, phase);
    axis.passes[0].push_back({tap, static_cast<int32_t>(found - axis.phases.begin()), shift});
    axis.max_shift = std::max(axis.max_shift, shift);
  }
  return axis;
}

// Row i * stride + phase of x and tap t meet row i + (phase + pad - t * dilation) / stride of y, where that is whole.
DirectAxis DirectAxis::of_target(int32_t in, int32_t filter, int32_t pad, int32_t stride, int32_t dilation) {
  DirectAxis axis{ceil_div(in, stride), 1, stride, 0, 0, {0}, std::vector<std::vector<Tap>>(size_t(stride))};
  for (int32_t phase = 0; phase < stride; ++phase)
    for (int32_t tap = 0; tap < filter; ++tap) {
      const int32_t distance = phase + pad - tap * dilation;
      if (distance % stride) continue;
      axis.passes[size_t(phase)].push_back({tap, 0, distance / stride});
      axis.before = std::max(axis.before, -distance / stride);
    }
  for (auto& pass : axis.passes)
    for (Tap& tap : pass) axis.max_shift = std::max(axis.max_shift, tap.shift += axis.before);
  return axis;
}

void DirectAxis::inside(int32_t phase, int32_t begin, int32_t count, int32_t size, int32_t& first,
                        int32_t& last) const {
  const int64_t at = int64_t{begin} * source_step + phases[size_t(phase)] - before;  // of position 0
  const auto position = [&](int64_t edge) {
    return edge <= at ? 0 : int32_t(std::min<int64_t>(count, ceil_div(edge - at, source_step)));
  };
  first = position(0);
  last = position(size);
}

DirectView::DirectView(Layout layout, int64_t channels, int32_t height, int32_t width)
    : image(channels * height * width), height(height), width(width) {
  const bool nchw = layout == Layout::nchw;
  channel = nchw ? int64_t{height} * width : 1;
  col = nchw ? 1 : channels;
  row = col * width;
}

namespace {

DirectAxis axis_of(const ConvProblem& p, bool height) {
  const int32_t pad = height ? p.pad_h : p.pad_w, stride = height ? p.stride_h : p.stride_w,
                dilation = height ? p.dilation_h : p.dilation_w, filter = height ? p.r : p.s;
  return p.direction == Direction::input_grad
             ? DirectAxis::of_target(height ? p.h : p.w, filter, pad, stride, dilation)
             : DirectAxis::of_source(height ? p.out_h() : p.out_w(), filter, pad, stride, dilation);
}

}  // namespace

DirectPlan::DirectPlan(const ConvProblem& p, int32_t threads)
    : h(axis_of(p, true)),
      w(axis_of(p, false)),
      source_channels(p.group_c()),
      target_channels(p.group_k()),
      source(p.layout, p.c, p.h, p.w),
      target(p.layout, p.k, p.out_h(), p.out_w()),
      pitch(int64_t{w.positions} + w.max_shift) {
  if (p.direction == Direction::input_grad) {
    std::swap(source, target);
    std::swap(source_channels, target_channels);
  }
  // In NHWC the channels of a pixel share cache lines: take about a line of them.
  const int32_t channels = std::min(source_channels, target_channels);
  groups_per_block = p.layout == Layout::nhwc ? std::min(p.groups, ceil_div(kSlack, channels)) : 1;
  blocks = ceil_div(p.groups, groups_per_block);

  set_rows(1);
  const int64_t fixed = strip_numel();
  set_rows(2);
  const int64_t fit = 1 + std::max<int64_t>(0, kStripNumel - fixed) / std::max<int64_t>(1, strip_numel() - fixed);
  // At least about four strips for every thread, unless that makes them shorter than what each reads twice.
  const int64_t images = int64_t{p.n} * blocks;
  const int64_t share = std::max<int64_t>(int64_t{h.positions} * images / (4 * threads), 4 * h.max_shift);
  const int64_t most = std::clamp<int64_t>(std::min(fit, share), 1, h.positions);
  set_rows(ceil_div(h.positions, ceil_div(h.positions, most)));
  strips = ceil_div(h.positions, rows);
}

void DirectPlan::set_rows(int32_t value) {
  rows = value;
  plane_step = (int64_t{rows} + h.max_shift) * pitch + w.max_shift + kSlack;
  target_step = (int64_t{rows} * pitch + kSlack - 1) / kSlack * kSlack;
}

std::vector<int32_t> DirectPlan::offsets(int32_t pass) const {
  const auto& pass_h = h.passes[size_t(pass) / w.passes.size()];
  const auto& pass_w = w.passes[size_t(pass) % w.passes.size()];
  std::vector<int32_t> result;
  result.reserve(size_t(source_channels) * pass_h.size() * pass_w.size());
  for (int32_t c = 0; c < source_channels; ++c)
    for (const DirectAxis::Tap& r : pass_h)
      for (const DirectAxis::Tap& s : pass_w) {
        const int64_t plane = (c * int64_t(h.phases.size()) + r.phase) * int64_t(w.phases.size()) + s.phase;
        result.push_back(static_cast<int32_t>(plane * plane_step + r.shift * pitch + s.shift));
      }
  return result;
}

}  // namespace reformer
