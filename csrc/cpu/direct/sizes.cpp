#include "sizes.h"

#include <algorithm>
#include <numeric>

namespace reformer {
namespace {

constexpr int64_t kSlack = 16;  // lanes of the widest vector: how far a kernel may read beyond a strip
constexpr int64_t kStripNumel = int64_t{32} << 10;  // 128 KiB of fp32: a part of the second-level cache

int32_t ceil_div(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

// a / b rounded up, for a of either sign and positive b.
int32_t ceil_quotient(int32_t a, int32_t b) { return a > 0 ? (a - 1) / b + 1 : a / b; }

}  // namespace

// Tap t reads phase t * dilation % stride, shifted by t * dilation / stride.
DirectExtent DirectExtent::of_source(int32_t out, int32_t filter, int32_t pad, int32_t stride, int32_t dilation) {
  return {out, stride, 1, pad, (filter - 1) * dilation / stride, std::min(filter, stride / std::gcd(stride, dilation)),
          1};
}

// Row i * stride + phase of x and tap t meet row i + (phase + pad - t * dilation) / stride of y if that is an integer.
// This holds for one phase per tap, where the shift is (pad - t * dilation) / stride rounded up.
DirectExtent DirectExtent::of_target(int32_t in, int32_t filter, int32_t pad, int32_t stride, int32_t dilation) {
  const int32_t first = ceil_quotient(pad, stride), last = ceil_quotient(pad - (filter - 1) * dilation, stride);
  const int32_t before = std::max(0, -last);
  return {ceil_div(in, stride), 1, stride, before, first + before, 1, stride};
}

DirectExtent DirectExtent::height(const ConvProblem& p) {
  return p.direction == Direction::input_grad ? of_target(p.h, p.r, p.pad_h, p.stride_h, p.dilation_h)
                                              : of_source(p.out_h(), p.r, p.pad_h, p.stride_h, p.dilation_h);
}

DirectExtent DirectExtent::width(const ConvProblem& p) {
  return p.direction == Direction::input_grad ? of_target(p.w, p.s, p.pad_w, p.stride_w, p.dilation_w)
                                              : of_source(p.out_w(), p.s, p.pad_w, p.stride_w, p.dilation_w);
}

DirectSizes::DirectSizes(const ConvProblem& p, int32_t threads)
    : source_channels(p.group_c()), target_channels(p.group_k()) {
  const DirectExtent h = DirectExtent::height(p), w = DirectExtent::width(p);
  if (p.direction == Direction::input_grad) std::swap(source_channels, target_channels);
  passes_ = h.target_phases * w.target_phases;
  planes_of_channel_ = h.source_phases * w.source_phases;
  pitch = int64_t{w.positions} + w.max_shift;
  // In NHWC the channels of a pixel share cache lines, so a block takes about a cache line of them.
  const int32_t channels = std::min(source_channels, target_channels);
  groups_per_block = p.layout == Layout::nhwc ? std::min(p.groups, ceil_div(kSlack, channels)) : 1;
  blocks = ceil_div(p.groups, groups_per_block);

  set_rows(1, h, w);
  const int64_t fixed = strip_numel();
  set_rows(2, h, w);
  const int64_t fit = 1 + std::max<int64_t>(0, kStripNumel - fixed) / std::max<int64_t>(1, strip_numel() - fixed);
  // Make about four strips per thread, unless they would become shorter than the rows that adjacent strips both read.
  const int64_t images = int64_t{p.n} * blocks;
  const int64_t share = std::max<int64_t>(int64_t{h.positions} * images / (4 * threads), 4 * h.max_shift);
  const int64_t most = std::clamp<int64_t>(std::min(fit, share), 1, h.positions);
  set_rows(ceil_div(h.positions, ceil_div(h.positions, most)), h, w);
  strips = ceil_div(h.positions, rows);
}

void DirectSizes::set_rows(int32_t value, const DirectExtent& h, const DirectExtent& w) {
  rows = value;
  plane_step = (int64_t{rows} + h.max_shift) * pitch + w.max_shift + kSlack;
  target_step = (int64_t{rows} * pitch + kSlack - 1) / kSlack * kSlack;
}

}  // namespace reformer
