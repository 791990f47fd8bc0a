// PyTorch's own convolution as candidates: the vendor's library, in the tensors' layout or through the other one.
#include "cpu/cost.h"
#include "solver_list.h"

namespace reformer {
namespace {

// Whether some column of the filter meets padding only, wherever the filter is placed.
bool has_idle_column(const ConvProblem& p) {
  for (int32_t s = 0; p.pad_w > 0 && s < p.s; ++s) {
    const int64_t start = int64_t{s} * p.dilation_w - p.pad_w;  // the input's column it meets first; then every stride
    const int64_t ow = start < 0 ? (p.stride_w - 1 - start) / p.stride_w : 0;
    if (ow >= p.out_w() || start + ow * p.stride_w >= p.w) return true;
  }
  return false;
}

// What oneDNN (as in PyTorch 2.11 to 2.13) gets wrong in NHWC:
// - The weight gradient of a strided 1x1 filter over fewer than 16 channels writes outside its buffers; glibc then
//   reports a corrupted heap.
// - Where a column of the filter meets padding only, bf16 weight gradients are left uninitialised there; where all of
//   them do, the forward pass with dilation ends in a segmentation fault.
bool is_broken(const ConvProblem& p, const Device& device, Layout via) {
  if (device.kind != DeviceKind::cpu || via != Layout::nhwc || p.direction == Direction::input_grad) return false;
  const bool strided_1x1 = p.r == 1 && p.s == 1 && (p.stride_h > 1 || p.stride_w > 1);
  if (p.direction == Direction::weight_grad && strided_1x1 && p.group_c() < 16) return true;
  return has_idle_column(p);
}

// On a GPU there is no model yet: all candidates tie, and the first, as given, is chosen.
double estimate(const CostModel& cost, const ConvProblem& p, const Device& device) {
  return device.kind == DeviceKind::cpu ? cost.estimate_us(p, device) : 0;
}

// As given. Applies to every problem: where the vendor's kernel is known to be broken, through the other layout.
class Aten final : public Solver {
 public:
  const char* name() const override { return "aten"; }
  const char* refusal(const ConvProblem&, const Device&) const override { return nullptr; }
  double estimate_us(const ConvProblem& p, const Device& device) const override { return estimate(cost_, p, device); }
  void run(const ConvProblem& p, const Device& device, ConvCall& call) const override { call.aten(via(p, device)); }

 private:
  const CostModel cost_{"aten"};

  static Layout via(const ConvProblem& p, const Device& device) {
    return is_broken(p, device, p.layout) ? Layout::nchw : p.layout;
  }
};

// Through the other layout: converts the operands, and the result back.
template <Layout kVia>
class AtenThrough final : public Solver {
 public:
  const char* name() const override { return kVia == Layout::nhwc ? "aten_nhwc" : "aten_nchw"; }
  const char* refusal(const ConvProblem& p, const Device& device) const override {
    if (p.layout == kVia) return "the tensors have this layout already";
    if (is_broken(p, device, kVia)) return "the vendor's kernel is broken for this geometry in this layout";
    return nullptr;
  }
  double estimate_us(const ConvProblem& p, const Device& device) const override { return estimate(cost_, p, device); }
  int64_t workspace_bytes(const ConvProblem& p, const Device&) const override {
    return (p.input_numel() + p.weight_numel() + p.output_numel()) * element_size(p.dtype);
  }
  void run(const ConvProblem&, const Device&, ConvCall& call) const override { call.aten(kVia); }

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
