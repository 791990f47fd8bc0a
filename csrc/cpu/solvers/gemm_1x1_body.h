// The body of gemm_1x1.cpp, compiled once for each instruction set. In NCHW a product's columns are pixels, so that
// vectors run along the image; in NHWC, and for images of one pixel, they are channels.
#include "cpu/gemm/gemm.h"

namespace reformer::REFORMER_ISA {

template <class T>
struct Gemm1x1Call {
  using S = typename Element<T>::Sum;
  using Columns = ImageColumns<S, T>;
  const ConvProblem& p;
  const Device& device;
  const S* bias;  // of all groups, or null
  T *x, *w, *y;
  S* partial;  // weight_grad: the parts of its sum, or null
  int64_t sum_parts;

  int64_t kg() const { return p.group_k(); }
  int64_t cg() const { return p.group_c(); }
  int64_t out_pixels() const { return int64_t{p.n} * p.out_h() * p.out_w(); }
  bool strided() const { return p.stride_h > 1 || p.stride_w > 1; }
  Pixels x_pixels() const { return {p.out_h(), p.out_w(), p.h, p.w, p.stride_h, p.stride_w}; }
  Pixels y_pixels() const { return {p.out_h(), p.out_w(), p.out_h(), p.out_w(), 1, 1}; }
  const T* group_w(int64_t g) const { return w + g * kg() * cg(); }
  const T* w_end() const { return w + p.weight_numel(); }
  const S* group_bias(int64_t g) const { return bias ? bias + g * kg() : nullptr; }

  // The channels of a group in NCHW. E is T or const T.
  template <class E>
  Images<E> x_images(int64_t g) const {
    return {x + g * cg() * p.h * p.w, x + p.input_numel(), int64_t{p.c} * p.h * p.w, x_pixels()};
  }
  template <class E>
  Images<E> y_images(int64_t g) const {
    const int64_t plane = int64_t{p.out_h()} * p.out_w();
    return {y + g * kg() * plane, y + p.output_numel(), p.k * plane, y_pixels()};
  }

  void forward_nchw() const {
    for_each_part<S>(p.groups, kg(), out_pixels(), device.threads, [&](int64_t g, const PartIndex& index) {
      multiply<S>(device.isa, AlongSum<S, T, Affine>{group_w(g), {cg()}}, Columns{x_images<const T>(g)},
                  OutImages<S, T>{y_images<T>(g), group_bias(g)}, index.template of<S>(kg(), out_pixels(), cg()));
    });
  }
  void input_grad_nchw() const {
    for_each_part<S>(p.groups, cg(), out_pixels(), device.threads, [&](int64_t g, const PartIndex& index) {
      multiply<S>(device.isa, AcrossSum<S, T, Affine>{group_w(g), w_end(), {cg()}}, Columns{y_images<const T>(g)},
                  OutImages<S, T>{x_images<T>(g)}, index.template of<S>(cg(), out_pixels(), kg()));
    });
  }

  template <class Offset>  // of x's pixels
  void forward_nhwc(const Offset& offset) const {
    for_each_part<S>(p.groups, out_pixels(), kg(), device.threads, [&](int64_t g, const PartIndex& index) {
      multiply<S>(device.isa, AlongSum<S, T, Offset>{x + g * cg(), offset}, AlongSum<S, T, Affine>{group_w(g), {cg()}},
                  OutRows<S, T, Affine>{y + g * kg(), {p.k}, group_bias(g)},
                  index.template of<S>(out_pixels(), kg(), cg()));
    });
  }
  template <class Out>  // of group 0
  void input_grad_nhwc(const Out& first) const {
    for_each_part<S>(p.groups, out_pixels(), cg(), device.threads, [&](int64_t g, const PartIndex& index) {
      Out out = first;
      out.data += g * cg();
      multiply<S>(device.isa, AlongSum<S, T, Affine>{y + g * kg(), {p.k}},
                  AcrossSum<S, T, Affine>{group_w(g), w_end(), {cg()}}, out,
                  index.template of<S>(out_pixels(), cg(), kg()));
    });
  }

  void weight_grad_nchw() const {
    weight_grad(
        p, device, w, partial, sum_parts, [&](int64_t g) { return ImageRows<S, T>{y_images<const T>(g)}; },
        [&](int64_t g) { return ImageRows<S, T>{x_images<const T>(g)}; });
  }
  template <class Offset>
  void weight_grad_nhwc(const Offset& offset) const {
    weight_grad(
        p, device, w, partial, sum_parts,
        [&](int64_t g) { return AcrossSum<S, T, Affine>{y + g * kg(), y + p.output_numel(), {p.k}}; },
        [&](int64_t g) { return AcrossSum<S, T, Offset>{x + g * cg(), x + p.input_numel(), offset}; });
  }

  void run() const {
    const bool nchw = p.layout == Layout::nchw && p.h * p.w > 1;
    const Affine dense{p.c};
    const PixelRows spread{x_pixels(), p.c};
    switch (p.direction) {
      case Direction::forward: return nchw ? forward_nchw() : strided() ? forward_nhwc(spread) : forward_nhwc(dense);
      case Direction::input_grad:
        return nchw        ? input_grad_nchw()
               : strided() ? input_grad_nhwc(OutPixelRows<S, T>{x, spread})
                           : input_grad_nhwc(OutRows<S, T, Affine>{x, dense});
      case Direction::weight_grad:
        return nchw ? weight_grad_nchw() : strided() ? weight_grad_nhwc(spread) : weight_grad_nhwc(dense);
    }
  }
};

template <class T>
void gemm_1x1(const ConvProblem& p, const Device& device, const ConvBuffers& b, const typename Element<T>::Sum* bias,
              int64_t sum_parts) {
  using S = typename Element<T>::Sum;
  Gemm1x1Call<T>{p,
                 device,
                 bias,
                 static_cast<T*>(b.x),
                 static_cast<T*>(b.w),
                 static_cast<T*>(b.y),
                 static_cast<S*>(b.workspace),
                 sum_parts}
      .run();
}

}  // namespace reformer::REFORMER_ISA
