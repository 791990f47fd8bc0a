#include "config.h"

#include <algorithm>

namespace reformer {

DirectAxis DirectAxis::of_source(const DirectExtent& extent, int32_t filter, int32_t dilation) {
  DirectAxis axis{extent, {}, {{}}};
  for (int32_t tap = 0; tap < filter; ++tap) {
    const int32_t phase = tap * dilation % extent.source_step, shift = tap * dilation / extent.source_step;
    auto found = std::find(axis.phases.begin(), axis.phases.end(), phase);
    if (found == axis.phases.end()) found = axis.phases.insert(found, phase);
    axis.passes[0].push_back({tap, static_cast<int32_t>(found - axis.phases.begin()), shift});
  }
  return axis;
}

DirectAxis DirectAxis::of_target(const DirectExtent& extent, int32_t filter, int32_t pad, int32_t dilation) {
  const int32_t stride = extent.target_step;
  DirectAxis axis{extent, {0}, std::vector<std::vector<Tap>>(size_t(stride))};
  for (int32_t phase = 0; phase < stride; ++phase)
    for (int32_t tap = 0; tap < filter; ++tap) {
      const int32_t distance = phase + pad - tap * dilation;
      if (distance % stride == 0) axis.passes[size_t(phase)].push_back({tap, 0, distance / stride + extent.before});
    }
  return axis;
}

void DirectAxis::inside(int32_t phase, int32_t begin, int32_t count, int32_t size, int32_t& first,
                        int32_t& last) const {
  const int64_t at = int64_t{begin} * source_step + phases[size_t(phase)] - before;  // of position 0
  const auto position = [&](int64_t edge) {
    return edge <= at ? 0 : int32_t(std::min<int64_t>(count, (edge - at + source_step - 1) / source_step));
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
  const DirectExtent extent = height ? DirectExtent::height(p) : DirectExtent::width(p);
  const int32_t filter = height ? p.r : p.s, dilation = height ? p.dilation_h : p.dilation_w;
  return p.direction == Direction::input_grad
             ? DirectAxis::of_target(extent, filter, height ? p.pad_h : p.pad_w, dilation)
             : DirectAxis::of_source(extent, filter, dilation);
}

}  // namespace

DirectConfig::DirectConfig(const ConvProblem& p, int32_t threads)
    : DirectSizes(p, threads),
      h(axis_of(p, true)),
      w(axis_of(p, false)),
      source(p.layout, p.c, p.h, p.w),
      target(p.layout, p.k, p.out_h(), p.out_w()) {
  if (p.direction == Direction::input_grad) std::swap(source, target);
}

std::vector<int32_t> DirectConfig::offsets(int32_t pass) const {
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
