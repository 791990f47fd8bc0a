// The definition as plain loops in fp64: the oracle with which the tests compare every other solver. Never chosen.

#include "conv/solver.h"
#include "cpu/element.h"
#include "cpu/parallel.h"

namespace reformer {
namespace {

// Offsets of the elements of a tensor of these four sizes, dense in a layout.
struct Index {
  int64_t channels, height, width;
  Layout layout;
  int64_t operator()(int64_t n, int64_t c, int64_t h, int64_t w) const {
    if (layout == Layout::nchw) return ((n * channels + c) * height + h) * width + w;
    return ((n * height + h) * width + w) * channels + c;
  }
};

template <class T>
void run_as(const ConvProblem& p, const ConvBuffers& b) {
  const int32_t out_h = p.out_h(), out_w = p.out_w();
  const Index xi{p.c, p.h, p.w, p.layout}, wi{p.group_c(), p.r, p.s, p.layout}, yi{p.k, out_h, out_w, p.layout};
  T *x = static_cast<T*>(b.x), *w = static_cast<T*>(b.w), *y = static_cast<T*>(b.y);
  const T* bias = static_cast<const T*>(b.bias);
  const auto value = [](T v) { return double{Element<T>::load(v)}; };
  const auto store = [](double sum) { return Element<T>::store(static_cast<typename Element<T>::Sum>(sum)); };

  if (p.direction == Direction::forward) {
    parallel_for(int64_t{p.n} * p.k, 1, [&](int64_t begin, int64_t end) {
      for (int64_t nk = begin; nk < end; ++nk)
        for (int32_t oh = 0; oh < out_h; ++oh)
          for (int32_t ow = 0; ow < out_w; ++ow) {
            const int64_t n = nk / p.k, k = nk % p.k, first_c = k / p.group_k() * p.group_c();
            double sum = bias ? value(bias[k]) : 0;
            for (int32_t c = 0; c < p.group_c(); ++c)
              for (int32_t r = 0; r < p.r; ++r)
                for (int32_t s = 0; s < p.s; ++s) {
                  const int64_t ih = int64_t{oh} * p.stride_h - p.pad_h + int64_t{r} * p.dilation_h;
                  const int64_t iw = int64_t{ow} * p.stride_w - p.pad_w + int64_t{s} * p.dilation_w;
                  if (ih < 0 || ih >= p.h || iw < 0 || iw >= p.w) continue;
                  sum += value(x[xi(n, first_c + c, ih, iw)]) * value(w[wi(k, c, r, s)]);
                }
            y[yi(n, k, oh, ow)] = store(sum);
          }
    });
  } else if (p.direction == Direction::input_grad) {
    parallel_for(int64_t{p.n} * p.c, 1, [&](int64_t begin, int64_t end) {
      for (int64_t nc = begin; nc < end; ++nc)
        for (int32_t ih = 0; ih < p.h; ++ih)
          for (int32_t iw = 0; iw < p.w; ++iw) {
            const int64_t n = nc / p.c, c = nc % p.c, group = c / p.group_c();
            double sum = 0;
            for (int64_t k = group * p.group_k(); k < (group + 1) * p.group_k(); ++k)
              for (int32_t r = 0; r < p.r; ++r)
                for (int32_t s = 0; s < p.s; ++s) {
                  const int64_t h = int64_t{ih} + p.pad_h - int64_t{r} * p.dilation_h,
                                v = int64_t{iw} + p.pad_w - int64_t{s} * p.dilation_w;
                  if (h < 0 || v < 0 || h % p.stride_h || v % p.stride_w) continue;
                  const int64_t oh = h / p.stride_h, ow = v / p.stride_w;
                  if (oh >= out_h || ow >= out_w) continue;
                  sum += value(y[yi(n, k, oh, ow)]) * value(w[wi(k, c % p.group_c(), r, s)]);
                }
            x[xi(n, c, ih, iw)] = store(sum);
          }
    });
  } else {
    parallel_for(int64_t{p.k} * p.group_c(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t kc = begin; kc < end; ++kc)
        for (int32_t r = 0; r < p.r; ++r)
          for (int32_t s = 0; s < p.s; ++s) {
            const int64_t k = kc / p.group_c(), c = kc % p.group_c(), in_c = k / p.group_k() * p.group_c() + c;
            double sum = 0;
            for (int32_t n = 0; n < p.n; ++n)
              for (int32_t oh = 0; oh < out_h; ++oh)
                for (int32_t ow = 0; ow < out_w; ++ow) {
                  const int64_t ih = int64_t{oh} * p.stride_h - p.pad_h + int64_t{r} * p.dilation_h;
                  const int64_t iw = int64_t{ow} * p.stride_w - p.pad_w + int64_t{s} * p.dilation_w;
                  if (ih < 0 || ih >= p.h || iw < 0 || iw >= p.w) continue;
                  sum += value(x[xi(n, in_c, ih, iw)]) * value(y[yi(n, k, oh, ow)]);
                }
            w[wi(k, c, r, s)] = store(sum);
          }
    });
  }
}

class Reference final : public Solver {
 public:
  const char* name() const override { return "reference"; }
  bool eligible() const override { return false; }
  Planned<ConvPlan> plan(const ConvProblem& p, const Device&) const override {
    if (p.dtype == DType::int8) return "it has no 8-bit integers";
    ConvPlan plan;
    plan.us = p.flops() / 1e3;
    plan.run = [p](const ConvBuffers& buffers) {
      dispatch(p.dtype, [&](auto element) { run_as<decltype(element)>(p, buffers); });
    };
    return plan;
  }
};

}  // namespace

const Solver& reference() {
  static const Reference solver;
  return solver;
}

}  // namespace reformer
