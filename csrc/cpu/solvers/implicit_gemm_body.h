// The body of implicit_gemm.cpp, compiled once for each instruction set. In NCHW a product's columns are windows; in
// NHWC they are channels.
#include "cpu/gemm/gemm.h"

namespace reformer::REFORMER_ISA {

// Along one axis, the inputs i0, i0 + stride, ... (`count` of them) meet exactly the taps t0, t0 + period, ... of the
// filter. For each such phase the input gradient is a stride-1 convolution of dy.
struct Phase {
  int64_t i0, t0, period;
  Axis axis;

  static Phase of(int64_t phase, int64_t size, int64_t out_size, int64_t filter, int64_t pad, int64_t stride,
                  int64_t dilation) {
    Phase p{((phase - pad) % stride + stride) % stride, 0, 1, {out_size, 0, 1, 0, 0, 0}};
    if (p.i0 < size) p.axis.windows = (size - 1 - p.i0) / stride + 1;
    while (p.period * dilation % stride) ++p.period;
    while (p.t0 < filter && (p.t0 * dilation - phase) % stride) ++p.t0;
    if (p.t0 < filter) p.axis.taps = (filter - 1 - p.t0) / p.period + 1;
    p.axis.first = (p.i0 + pad - p.t0 * dilation) / stride;
    p.axis.inc = -(p.period * dilation / stride);
    return p;
  }
};

template <class T>
struct ImplicitGemmCall {
  using S = typename Element<T>::Sum;
  const ConvProblem& p;
  const Device& device;
  const S* bias;  // of all groups, or null
  T *x, *w, *y;
  S* workspace;
  int64_t sum_parts;

  int64_t kg() const { return p.group_k(); }
  int64_t cg() const { return p.group_c(); }
  int64_t taps() const { return int64_t{p.r} * p.s; }
  int64_t x_plane() const { return int64_t{p.h} * p.w; }
  int64_t y_plane() const { return int64_t{p.out_h()} * p.out_w(); }
  int64_t windows() const { return p.n * y_plane(); }
  bool nchw() const { return p.layout == Layout::nchw; }
  Windows forward_windows() const {
    return {{p.h, p.out_h(), p.stride_h, -p.pad_h, p.r, p.dilation_h},
            {p.w, p.out_w(), p.stride_w, -p.pad_w, p.s, p.dilation_w}};
  }
  template <class E>  // T or const T
  Images<E> y_images(int64_t g) const {
    return {y + g * kg() * y_plane(),
            y + p.output_numel(),
            p.k * y_plane(),
            {p.out_h(), p.out_w(), p.out_h(), p.out_w(), 1, 1}};
  }

  void forward() const {
    const int64_t depth = cg() * taps();
    const int64_t rows = nchw() ? kg() : windows(), cols = nchw() ? windows() : kg();
    for_each_part<S>(p.groups, rows, cols, device.threads, [&](int64_t g, const PartIndex& index) {
      const GemmPart part = index.template of<S>(rows, cols, depth);
      const AlongSum<S, T, Affine> filters{w + g * kg() * depth, {depth}};
      const S* group_bias = bias ? bias + g * kg() : nullptr;
      if (nchw())
        multiply<S>(device.isa, filters,
                    WindowColumns<S, T>{x + g * cg() * x_plane(), p.c * x_plane(), forward_windows()},
                    OutImages<S, T>{y_images<T>(g), group_bias}, part);
      else
        multiply<S>(device.isa, WindowChannels<S, T>{x + g * cg(), cg(), p.c, forward_windows()}, filters,
                    OutRows<S, T, Affine>{y + g * kg(), {p.k}, group_bias}, part);
    });
  }

  // Calls body(phase of the rows, phase of the columns, offset of its filter among those of all phases) for each phase.
  template <class Body>
  void for_each_phase(const Body& body) const {
    int64_t place = 0;
    for (int64_t i = 0; i < p.stride_h; ++i)
      for (int64_t j = 0; j < p.stride_w; ++j) {
        const Phase rows = Phase::of(i, p.h, p.out_h(), p.r, p.pad_h, p.stride_h, p.dilation_h);
        const Phase cols = Phase::of(j, p.w, p.out_w(), p.s, p.pad_w, p.stride_w, p.dilation_w);
        body(rows, cols, place);
        place += rows.axis.taps * cols.axis.taps * p.k * cg();
      }
  }

  // Writes the filters of all phases in the order of the sums, [g][c][k][tap], for one channel c of all groups at a
  // time.
  void order_filter_nchw() const {
    parallel_for(p.c, 1, [&](int64_t begin, int64_t end) {
      for_each_phase([&](const Phase& rows, const Phase& cols, int64_t place) {
        const int64_t count = rows.axis.taps * cols.axis.taps;
        for (int64_t c = begin; c < end; ++c)
          for (int64_t k = 0; k < kg(); ++k) {
            const T* from = w + ((c / cg() * kg() + k) * cg() + c % cg()) * taps();
            S* to = workspace + place + (c * kg() + k) * count;
            if (count == taps())
              widen_exactly(to, from, int(count));
            else
              for (int64_t tap = 0; tap < count; ++tap)
                to[tap] = Element<T>::load(from[(rows.t0 + tap / cols.axis.taps * rows.period) * p.s + cols.t0 +
                                                tap % cols.axis.taps * cols.period]);
          }
      });
    });
  }
  // The counterpart for NHWC: [g][tap][k][c], for one output channel of all groups at a time.
  void order_filter_nhwc() const {
    parallel_for(p.k, 1, [&](int64_t begin, int64_t end) {
      for_each_phase([&](const Phase& rows, const Phase& cols, int64_t place) {
        const int64_t count = rows.axis.taps * cols.axis.taps;
        for (int64_t k = begin; k < end; ++k)
          for (int64_t tap = 0; tap < count; ++tap) {
            const int64_t r = rows.t0 + tap / cols.axis.taps * rows.period;
            const int64_t s = cols.t0 + tap % cols.axis.taps * cols.period;
            const T* from = w + (k * taps() + r * p.s + s) * cg();
            S* to = workspace + place + ((k / kg() * count + tap) * kg() + k % kg()) * cg();
            for (int64_t c = 0; c < cg(); ++c) to[c] = Element<T>::load(from[c]);
          }
      });
    });
  }

  void input_grad() const {
    nchw() ? order_filter_nchw() : order_filter_nhwc();
    const int64_t inputs = p.n * ceil_div(p.h, p.stride_h) * ceil_div(p.w, p.stride_w);  // of the largest phase
    for_each_part<S>(p.groups, nchw() ? cg() : inputs, nchw() ? inputs : cg(), device.threads,
                     [&](int64_t g, const PartIndex& index) {
                       for_each_phase([&](const Phase& rows, const Phase& cols, int64_t place) {
                         input_grad_phase(g, index, rows, cols, place);
                       });
                     });
  }
  void input_grad_phase(int64_t g, const PartIndex& index, const Phase& rows, const Phase& cols, int64_t place) const {
    const Windows windows{rows.axis, cols.axis};
    const Pixels pixels{rows.axis.windows, cols.axis.windows, p.h, p.w, p.stride_h, p.stride_w};
    const int64_t inputs = p.n * pixels.count(), depth = kg() * windows.taps(), first = rows.i0 * p.w + cols.i0;
    const S* filter = workspace + place + g * cg() * depth;
    if (inputs == 0) return;
    if (nchw()) {
      T* const to = x + g * cg() * x_plane() + first;
      multiply<S>(device.isa, AlongSum<S, S, Affine>{filter, {depth}},
                  WindowColumns<S, T>{y + g * kg() * y_plane(), p.k * y_plane(), windows},
                  OutImages<S, T>{{to, x + p.input_numel(), p.c * x_plane(), pixels}, nullptr, false},
                  index.template of<S>(cg(), inputs, depth));
    } else {
      multiply<S>(device.isa, WindowChannels<S, T>{y + g * kg(), kg(), p.k, windows},
                  AcrossSum<S, S, Affine>{filter, workspace + p.weight_numel(), {cg()}},
                  OutPixelRows<S, T>{x + g * cg() + first * p.c, {pixels, p.c}, false},
                  index.template of<S>(inputs, cg(), depth));
    }
  }

  void weight_grad() const {
    S* const partial = workspace;
    if (nchw())
      REFORMER_ISA::weight_grad(
          p, device, w, partial, sum_parts, [&](int64_t g) { return ImageRows<S, T>{y_images<const T>(g)}; },
          [&](int64_t g) { return WindowRows<S, T>{x + g * cg() * x_plane(), p.c * x_plane(), forward_windows()}; });
    else
      REFORMER_ISA::weight_grad(
          p, device, w, partial, sum_parts,
          [&](int64_t g) { return AcrossSum<S, T, Affine>{y + g * kg(), y + p.output_numel(), {p.k}}; },
          [&](int64_t g) { return WindowChannels<S, T>{x + g * cg(), cg(), p.c, forward_windows()}; });
  }
};

template <class T>
void implicit_gemm(const ConvProblem& p, const Device& device, const ConvBuffers& b,
                   const typename Element<T>::Sum* bias, int64_t sum_parts) {
  using S = typename Element<T>::Sum;
  const ImplicitGemmCall<T> call{p,
                                 device,
                                 bias,
                                 static_cast<T*>(b.x),
                                 static_cast<T*>(b.w),
                                 static_cast<T*>(b.y),
                                 static_cast<S*>(b.workspace),
                                 sum_parts};
  switch (p.direction) {
    case Direction::forward: return call.forward();
    case Direction::input_grad: return call.input_grad();
    case Direction::weight_grad: return call.weight_grad();
  }
}

}  // namespace reformer::REFORMER_ISA
