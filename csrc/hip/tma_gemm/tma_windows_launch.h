// Launches of the TMA kernels for filters of any size: windows, classes and taps of a problem in NHWC. Pure functions;
// tma_gemm_launch.h launches these kernels like the others of the family.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>

#include "hip/gemm/implicit_gemm_launch.h"
#include "tma_windows.h"

namespace reformer {

struct TmaWindowsConfig {
  int taps_h = 0, taps_w = 0;  // size of the filter
  struct Class {
    gpu::Windows source;
    gpu::Windows result;   // if there are several classes: the pixels of the class
    int64_t first_result;  // offset of the first one, in elements
  };
  Class classes[kTmaMostClasses]{};
  int count = 0;
};

namespace tma_windows_launch {

// Pixels of an axis with the same remainder modulo the stride, and their taps of the filter: `first` and every
// `step`-th after it. The first pixel reads the source at `origin` for its first tap, and `tap_step` further for each
// next tap.
struct Class {
  int remainder, count, taps, first, step, origin, tap_step;
};

// An axis of the result: windows on the source, and classes.
struct Axis {
  gpu::Windows::Axis windows{};  // without their number
  Class classes[2]{};
  int count = 1;  // number of classes

  gpu::Windows::Axis windows_of(int i) const {
    gpu::Windows::Axis of = windows;
    of.count = classes[i].count;
    return of;
  }
  TmaTaps taps(int i) const {
    const Class& c = classes[i];
    return {c.taps, c.first, c.step, c.origin - windows.first, c.tap_step};
  }
};

// The windows of forward, which weight_grad also reads: one per pixel of y.
inline Axis forward_axis(int size, int out, int filter, int pad, int stride, int dilation) {
  Axis axis;
  axis.windows = {size, 0, -pad, 0, stride};
  axis.classes[0] = {0, out, filter, 0, 1, -pad, dilation};
  return axis;
}

// The windows of input_grad on y: one per pixel of x of a class. They begin where the first of all taps reads.
inline Axis input_grad_axis(int size, int out, int filter, int pad, int stride, int dilation) {
  ImplicitGemmAxis classes[kImplicitGemmMostClasses];
  Axis axis;
  axis.count = gemm_launch::make_classes(size, filter, pad, stride, dilation, classes);
  const int common = std::gcd(stride, dilation);
  bool some = false;
  int first = 0;
  for (int i = 0; i < axis.count; ++i) {
    const ImplicitGemmAxis& of = classes[i];
    axis.classes[i] = {of.first, of.count, of.taps, of.first_tap, stride / common, of.origin, -dilation / common};
    if (!of.taps) continue;
    const int begin = of.origin - (of.taps - 1) * (dilation / common);
    first = some ? std::min(first, begin) : begin;
    some = true;
  }
  axis.windows = {out, 0, first, 0, 1};
  return axis;
}

struct Axes {
  Axis h, w;
};
inline Axes axes_of(const ConvProblem& p) {
  const auto axis = p.direction == Direction::input_grad ? input_grad_axis : forward_axis;
  return {axis(p.h, p.out_h(), p.r, p.pad_h, p.stride_h, p.dilation_h),
          axis(p.w, p.out_w(), p.s, p.pad_w, p.stride_w, p.dilation_w)};
}

// Why the copy engine can't read these windows, or null.
inline const char* unsupported_axis(const Axis& axis) {
  if (axis.windows.step > 8) return "the copy engine's windows are at most 8 pixels apart";
  for (int i = 0; i < axis.count; ++i) {
    const gpu::Windows::Axis windows = axis.windows_of(i);
    if (windows.first < -128 || windows.first > 127 || windows.end() < -128 || windows.end() > 127)
      return "the copy engine's windows begin at most 128 pixels outside of an image";
    const TmaTaps taps = axis.taps(i);
    if (taps.count && std::max(taps.offset, taps.offset + (taps.count - 1) * taps.offset_step) > 255)
      return "the copy engine's windows have at most 256 pixels along an axis";
  }
  return nullptr;
}

}  // namespace tma_windows_launch

// Why these kernels don't compute a problem in NHWC, or null.
inline const char* unsupported_by_tma_windows(const ConvProblem& p) {
  if (p.direction == Direction::input_grad && (p.stride_h > 2 || p.stride_w > 2))
    return "it computes input_grad for strides up to 2";
  if (p.weight_numel() >= (int64_t{1} << 31) - (1 << 16)) return "it counts elements by 32 bits";
  const tma_windows_launch::Axes axes = tma_windows_launch::axes_of(p);
  const char* const reason = tma_windows_launch::unsupported_axis(axes.h);
  return reason ? reason : tma_windows_launch::unsupported_axis(axes.w);
}

// Fills in the parts that depend only on the problem. tma_gemm_launch.h sets rows, columns, steps and the schedule.
inline void configure_tma_windows(const ConvProblem& p, TmaWindowsArgs& args, TmaWindowsConfig& config) {
  using gemm_launch::ceil_div;
  const tma_windows_launch::Axes axes = tma_windows_launch::axes_of(p);
  const bool input_grad = p.direction == Direction::input_grad;
  const int channels = input_grad ? p.k : p.c;
  config = {};
  config.taps_h = p.r, config.taps_w = p.s;
  args.first_h = axes.h.windows.first, args.first_w = axes.w.windows.first;
  args.window_step_h = axes.h.windows.step, args.window_step_w = axes.w.windows.step;
  args.channels = channels;
  args.by_channels = make_divider(ceil_div(channels, 64));
  args.panels = p.r * p.s * ceil_div(channels, 64);
  args.scattered = axes.h.count * axes.w.count > 1;

  // Classes with the most taps come first, as their tiles take longest.
  std::pair<int, int> order[kTmaMostClasses];
  int& count = config.count;
  for (int h = 0; h < axes.h.count; ++h)
    for (int w = 0; w < axes.w.count; ++w) order[count++] = {h, w};
  const auto taps = [&](const std::pair<int, int>& of) {
    return axes.h.classes[of.first].taps * axes.w.classes[of.second].taps;
  };
  std::stable_sort(order, order + count, [&](const auto& a, const auto& b) { return taps(a) > taps(b); });
  const auto windows = [](int channels, gpu::Windows::Axis w, gpu::Windows::Axis h, int n, int64_t image_pitch) {
    return gpu::Windows{channels, w, h, n, image_pitch};
  };
  for (int i = 0; i < count; ++i) {
    const auto [h, w] = order[i];
    gpu::Windows::Axis source_h = axes.h.windows_of(h), source_w = axes.w.windows_of(w);
    TmaClass& of = args.classes[i];
    of.h = axes.h.taps(h), of.w = axes.w.taps(w);
    of.steps = taps(order[i]) * ceil_div(channels, 64);
    of.by_width = make_divider(std::max(1, of.w.count));
    of.by_image_windows = make_divider(source_h.count * source_w.count);
    of.by_line_windows = make_divider(source_w.count);
    source_w.pitch = channels;
    source_h.pitch = source_w.pitch * source_w.size;
    config.classes[i].source = windows(channels, source_w, source_h, p.n, source_h.pitch * source_h.size);
    if (!args.scattered) continue;
    const int64_t line = int64_t{p.w} * p.c;
    config.classes[i].result = windows(p.c, {source_w.count, int64_t{p.stride_w} * p.c, 0, source_w.count, 1},
                                       {source_h.count, p.stride_h * line, 0, source_h.count, 1}, p.n, p.h * line);
    config.classes[i].first_result = axes.h.classes[h].remainder * line + axes.w.classes[w].remainder * p.c;
  }
}

// Sets the tensor maps; see bind() of tma_gemm_launch.h.
inline void bind_tma_windows(const TmaWindowsConfig& config, Direction direction, int tile_rows, int tile_columns,
                             const void* x, const void* y, const void* filter, const void* result, TmaClassesArgs& a) {
  const int half_a = a.shared == TmaShared::kRows ? 2 : 1, half_b = a.shared == TmaShared::kColumns ? 2 : 1;
  if (direction == Direction::weight_grad) {
    a.a = gpu::tensor_map(y, {a.rows, a.depth}, {64, kTmaDepth / half_a});
    a.b = gpu::windows_map(x, config.classes[0].source, kTmaDepth / half_b);
    a.result = gpu::tensor_map(result, {a.channels, config.taps_w, config.taps_h, a.rows}, {64, 1, 1, 64});
    return;
  }
  const bool forward = direction == Direction::forward;
  for (int i = 0; i < config.count; ++i)
    if (a.classes[i].steps)
      (i ? a.other_sources[i - 1] : a.a) =
          gpu::windows_map(forward ? x : y, config.classes[i].source, tile_rows / half_a);
  const int line = forward ? a.channels : a.columns, lines = forward ? a.columns : a.channels;
  a.b = gpu::tensor_map(filter, {line, config.taps_w, config.taps_h, lines},
                        {64, 1, 1, (forward ? tile_columns : kTmaDepth) / half_b});
  if (!a.scattered) {
    a.result = gpu::tensor_map(result, {a.columns, a.rows}, {64, 64});
    return;
  }
  for (int i = 0; i < config.count; ++i) {
    const TmaWindowsConfig::Class& of = config.classes[i];
    (i ? a.other_results[i - 1] : a.result) =
        gpu::windows_map(static_cast<const char*>(result) + of.first_result * 2, of.result, 64);
  }
}

}  // namespace reformer
