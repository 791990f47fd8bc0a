// PyTorch's own convolution as candidates: the vendor's library, in the tensors' layout or via the other layout.
#include <algorithm>

#include "conv/solver.h"
#include "cpu/cost.h"
#include "hip/gpu_cost.h"

namespace reformer {

const Solver& implicit_gemm();  // cpu/solvers/implicit_gemm.cpp
const Solver& reference();      // cpu/solvers/reference.cpp

namespace {

// True if at least one column of the filter meets only padding, wherever the filter is placed.
bool has_idle_column(const ConvProblem& p) {
  for (int32_t s = 0; p.pad_w > 0 && s < p.s; ++s) {
    const int64_t start =
        int64_t{s} * p.dilation_w - p.pad_w;  // the input column that it meets first; then every stride
    const int64_t ow = start < 0 ? (p.stride_w - 1 - start) / p.stride_w : 0;
    if (ow >= p.out_w() || start + ow * p.stride_w >= p.w) return true;
  }
  return false;
}

// Known errors of oneDNN (as in PyTorch 2.11 to 2.13):
// - bf16 weight gradients with a stride along rows are left uninitialised where a column of the filter meets only
//   padding, and for some outputs of one column.
// - bf16 input gradients with a stride near 2^31 end in a segmentation fault.
// - A bf16 forward pass with one input channel per group and a stride along rows of one output gives wrong rows except
//   for the first: in NHWC with AVX-512, and on some processors in NCHW.
// And in NHWC:
// - If all columns of the filter meet only padding, a forward pass with dilation ends in a segmentation fault.
// - The weight gradient of a strided 1x1 filter over fewer than 16 channels writes outside its buffers; glibc then
//   reports a corrupted heap.
bool is_broken_on_cpu(const ConvProblem& p, Layout via) {
  const bool weight_grad = p.direction == Direction::weight_grad, bf16 = p.dtype == DType::bf16;
  if (bf16 && !p.fits_32_bits()) return true;
  if (p.direction == Direction::input_grad) return false;
  const bool one_column = p.out_w() == 1 && p.stride_w > 1;
  if (weight_grad && bf16 && one_column) return true;
  if (!weight_grad && bf16 && one_column && p.groups > 1 && p.group_c() == 1) return true;
  if (via == Layout::nchw) return weight_grad && bf16 && p.stride_w > 1 && has_idle_column(p);
  const bool strided_1x1 = p.r == 1 && p.s == 1 && (p.stride_h > 1 || p.stride_w > 1);
  if (weight_grad && strided_1x1 && p.group_c() < 16) return true;
  return has_idle_column(p);
}

// Known errors of cuDNN 9 on sm_90 in NHWC if the tensors have been converted for it: some 16-bit 1x1 convolutions
// whose numbers of channels are not multiples of 8, in each direction (`wrong` in benchmarks/results/h100 and h200).
bool is_broken(const ConvProblem& p, const Device& device, Layout via) {
  if (device.kind == DeviceKind::cpu) return is_broken_on_cpu(p, via);
  const bool odd = p.c % 8 != 0 || p.k % 8 != 0;
  return device.is_nvidia() && via == Layout::nhwc && p.layout != via && element_size(p.dtype) == 2 && odd;
}

// How oneDNN sums in fp32 depends on the layout, and the error grows with the root of the number of terms added one by
// one: in NHWC all products of an element, in NCHW blocks of 16 channels, except in matrix products for grouped
// convolutions and odd numbers of channels, which round less. Within these bounds the error via a layout is at most
// twice that of the other one, or little more than the unit in the last place of the result (benchmarks/accuracy.py).
bool is_as_accurate(const ConvProblem& p, Layout via) {
  const bool nhwc = via == Layout::nhwc, in_blocks = p.groups == 1 && p.c % 16 == 0 && p.k % 16 == 0;
  if (p.direction == Direction::weight_grad) {
    const int64_t pixels = int64_t{p.n} * p.out_h() * p.out_w();
    return nhwc ? in_blocks || pixels <= 128 : pixels <= 192;
  }
  const int32_t channels = p.direction == Direction::forward ? p.group_c() : p.group_k(), taps = p.r * p.s;
  return nhwc ? taps * int64_t{channels} <= (in_blocks ? 320 : 128) : taps * std::min(channels, 16) <= 144;
}

// Why computing via a layout may be less accurate than PyTorch; null if it is not.
const char* inaccuracy(const ConvProblem& p, const Device& device, Layout via) {
  if (device.kind == DeviceKind::cpu) return p.dtype == DType::fp32 && !is_as_accurate(p, via) ? kInaccurate : nullptr;
  // PyTorch's own kernel for depthwise NCHW accumulates in fp16.
  const bool adds_fp16 = p.dtype == DType::fp16 && p.kind() == Kind::depthwise && via == Layout::nchw;
  return adds_fp16 && p.direction == Direction::weight_grad ? kInaccurate : nullptr;
}

// On a GPU, a rough rate of cuDNN on an H200: half as fast in NCHW, and 10% to 20% of the bandwidth where it has no
// matrix product. Converting the operands and the result takes at least two more passes.
double estimate(const CostModel& cost, const ConvProblem& p, const Device& device, Layout via) {
  if (device.kind == DeviceKind::cpu) return cost.estimate_us(p, device);
  const double share = (p.kind() == Kind::depthwise ? 0.15 : 0.3) * (via == Layout::nhwc ? 1 : 0.5);
  return gpu_estimate_us(p, share) + (via == p.layout ? 0 : 2 * gpu_estimate_us(p, 0.8));
}

// In the tensors' own layout. Applies to every problem: where the vendor's kernel is known to be broken, it computes
// via the other layout, and where both are broken, by a kernel of this package.
class Aten final : public Solver {
 public:
  const char* name() const override { return "aten"; }
  bool runs_on(const Device&) const override { return true; }
  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    ConvPlan plan;
    if (!is_broken(p, device, p.layout))
      plan.aten = p.layout;
    else if (!is_broken(p, device, Layout::nchw))
      plan.aten = Layout::nchw;
    else
      plan = *(p.fits_32_bits() ? implicit_gemm() : reference()).plan(p, device).plan;
    plan.us = estimate(cost_, p, device, p.layout);
    return plan;
  }

 private:
  const CostModel cost_{"aten"};
};

// Via the other layout: converts the operands, and converts the result back.
template <Layout kVia>
class AtenThrough final : public Solver {
 public:
  const char* name() const override { return kVia == Layout::nhwc ? "aten_nhwc" : "aten_nchw"; }
  bool runs_on(const Device&) const override { return true; }
  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (p.layout == kVia) return "the tensors have this layout already";
    // Grouped convolutions are up to 24 times as fast in NCHW on an H200.
    if (kVia == Layout::nchw && device.is_nvidia() && p.groups == 1) return "in NHWC cuDNN is faster as it is";
    if (is_broken(p, device, kVia)) return "the vendor's kernel is broken for this geometry in this layout";
    ConvPlan plan;
    plan.us = estimate(cost_, p, device, kVia);
    plan.workspace_bytes = (p.input_numel() + p.weight_numel() + p.output_numel()) * element_size(p.dtype);
    plan.inaccuracy = inaccuracy(p, device, kVia);
    plan.aten = kVia;
    return plan;
  }

 private:
  const CostModel cost_{kVia == Layout::nhwc ? "aten_nhwc" : "aten_nchw"};
};

}  // namespace

const Solver& aten() {
  static const Aten solver;
  return solver;
}
const Solver& aten_nhwc() {
  static const AtenThrough<Layout::nhwc> solver;
  return solver;
}
const Solver& aten_nchw() {
  static const AtenThrough<Layout::nchw> solver;
  return solver;
}

}  // namespace reformer
