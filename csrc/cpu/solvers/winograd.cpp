// Winograd convolution with tiles of 2x4 and 4x4 outputs, with 3 and 4 times fewer multiplications
// (winograd/winograd.h).

#include "cpu/winograd/winograd.h"
#include "conv/solver.h"
#include "cpu/cost.h"

namespace reformer {
namespace {

class WinogradSolver final : public Solver {
 public:
  WinogradSolver(const char* name, WinogradTile tile) : name_(name), tile_(tile), cost_(name) {}

  const char* name() const override { return name_; }

  Planned<ConvPlan> plan(const ConvProblem& p, const Device& device) const override {
    if (device.isa == Isa::plain) return "without fused multiply-add its rounding error is too large";
    if (p.dtype != DType::fp32) return "the data type is not fp32";
    if (p.direction == Direction::weight_grad) return "it has no weight gradient";
    if (p.r != 3 || p.s != 3) return "the filter is not 3x3";
    if (p.stride_h != 1 || p.stride_w != 1) return "the stride is not 1";
    if (p.dilation_h != 1 || p.dilation_w != 1) return "the dilation is not 1";
    if (p.groups != 1) return "the convolution is grouped";
    if (p.pad_h > 2 || p.pad_w > 2) return "the padding is larger than 2";
    const WinogradConfig tiles = winograd_config(p, device, tile_);
    ConvPlan plan;
    plan.us = cost_.estimate_us(p, device);
    plan.workspace_bytes = winograd_workspace_bytes(tiles, device);
    if (!is_accurate(p)) plan.inaccuracy = kInaccurate;
    plan.run = [device, tiles](const ConvBuffers& buffers) {
      run_winograd(bound(tiles, buffers), device, buffers.workspace);
    };
    return plan;
  }

 private:
  // See winograd/winograd.h for the measurements. PyTorch rounds more in NHWC, where it adds up all products of an
  // output one after another, than in NCHW, where it does so in blocks of 16 channels.
  bool is_accurate(const ConvProblem& p) const {
    const bool forward = p.direction == Direction::forward;
    const int32_t channels = forward ? p.c : p.k, result_channels = forward ? p.k : p.c;
    // PyTorch treats a tensor of one channel as NCHW.
    return tile_.h == 2 ? channels >= 16 : p.layout == Layout::nhwc && channels >= 32 && result_channels > 1;
  }

  const char* name_;
  WinogradTile tile_;
  CostModel cost_;
};

}  // namespace

const Solver& winograd_2x4() {
  static const WinogradSolver solver("winograd_2x4", {2, 4});
  return solver;
}

const Solver& winograd_4x4() {
  static const WinogradSolver solver("winograd_4x4", {4, 4});
  return solver;
}

}  // namespace reformer
