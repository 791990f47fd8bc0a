#include "strip.h"

#include <algorithm>

namespace reformer {
namespace {

template <class S>
void zero(S* rows, int64_t row_step, int32_t count, int64_t begin, int64_t end) {
  if (begin == end) return;
  for (int32_t i = 0; i < count; ++i) std::fill(rows + i * row_step + begin, rows + i * row_step + end, S(0));
}

}  // namespace

template <class T>
void pack_source(const DirectConfig& config, const DirectCopies<T>& copies, T* tensor, const DirectStrip& strip,
                 typename Element<T>::Sum* planes) {
  using S = typename Element<T>::Sum;
  const DirectView& view = config.source;
  const int64_t channel_step = config.planes_of_channel() * config.plane_step, pitch = config.pitch;
  const int32_t rows = strip.rows + config.h.max_shift;
  T* const image = tensor + strip.image * view.image + strip.channel * view.channel;
  for (int32_t phase_h = 0; phase_h < int32_t(config.h.phases.size()); ++phase_h)
    for (int32_t phase_w = 0; phase_w < int32_t(config.w.phases.size()); ++phase_w, planes += config.plane_step) {
      int32_t top, bottom, left, right;
      config.h.inside(phase_h, strip.begin, rows, view.height, top, bottom);
      config.w.inside(phase_w, 0, int32_t(pitch), view.width, left, right);
      if (left == right) bottom = top;
      const int64_t first_col =
          int64_t{left} * config.w.source_step + config.w.phases[size_t(phase_w)] - config.w.before;
      zero(planes, channel_step, strip.channels, 0, top * pitch);
      for (int32_t i = top; i < bottom; ++i) {
        const int64_t row =
            int64_t{strip.begin + i} * config.h.source_step + config.h.phases[size_t(phase_h)] - config.h.before;
        S* const to = planes + i * pitch;
        zero(to, channel_step, strip.channels, 0, left);
        copies.load({image + row * view.row + first_col * view.col, view.channel, config.w.source_step * view.col,
                     to + left, channel_step, strip.channels, right - left});
        zero(to, channel_step, strip.channels, right, pitch);
      }
      // The slack is zeroed, too, since it is read: in weight_grad a stale NaN there would spread.
      const int64_t end = rows * pitch + (config.plane_step - (config.rows + config.h.max_shift) * pitch);
      zero(planes, channel_step, strip.channels, bottom * pitch, end);
    }
}

template <class T>
void pack_target(const DirectConfig& config, const DirectCopies<T>& copies, T* tensor, const DirectStrip& strip,
                 typename Element<T>::Sum* packed) {
  const DirectView& view = config.target;
  T* const first = tensor + strip.image * view.image + strip.channel * view.channel + strip.begin * view.row;
  for (int32_t i = 0; i < strip.rows; ++i) {
    auto* const to = packed + i * config.pitch;
    copies.load({first + i * view.row, view.channel, view.col, to, config.target_step, strip.channels, view.width});
    zero(to, config.target_step, strip.channels, view.width, config.pitch);
  }
  zero(packed, config.target_step, strip.channels, strip.rows * config.pitch, config.target_step);
}

template <class T>
void unpack_target(const DirectConfig& config, const DirectCopies<T>& copies, const typename Element<T>::Sum* packed,
                   const DirectStrip& strip, T* tensor) {
  const DirectView& view = config.target;
  const int32_t step_h = config.h.target_step, step_w = config.w.target_step;
  T* const image = tensor + strip.image * view.image + strip.channel * view.channel;
  const int64_t pass_step = config.target_step * strip.channels;
  for (int32_t i = 0; i < strip.rows; ++i)
    for (int32_t phase_h = 0; phase_h < step_h; ++phase_h)
      for (int32_t phase_w = 0; phase_w < step_w; ++phase_w) {
        const int64_t row = int64_t{strip.begin + i} * step_h + phase_h;
        const int32_t cols = (view.width - phase_w + step_w - 1) / step_w;
        if (row >= view.height || cols <= 0) continue;
        const auto* const from = packed + (phase_h * step_w + phase_w) * pass_step + i * config.pitch;
        copies.store({image + row * view.row + phase_w * view.col, view.channel, step_w * view.col,
                      const_cast<typename Element<T>::Sum*>(from), config.target_step, strip.channels, cols});
      }
}

#define REFORMER_INSTANTIATE(T)                                                                                        \
  template void pack_source<T>(const DirectConfig&, const DirectCopies<T>&, T*, const DirectStrip&, Element<T>::Sum*); \
  template void pack_target<T>(const DirectConfig&, const DirectCopies<T>&, T*, const DirectStrip&, Element<T>::Sum*); \
  template void unpack_target<T>(const DirectConfig&, const DirectCopies<T>&, const Element<T>::Sum*,                  \
                                 const DirectStrip&, T*);
REFORMER_INSTANTIATE(float)
REFORMER_INSTANTIATE(double)
REFORMER_INSTANTIATE(Half)
REFORMER_INSTANTIATE(BFloat16)
#undef REFORMER_INSTANTIATE

}  // namespace reformer
