// A convolution problem: everything that the choice of a kernel may depend on, except the device. Its text form is
// MIOpen's find-db key, e.g. 64-56-56-3x3-64-56-56-32-1x1-1x1-1x1-0-NCHW-FP16-F; of matrix products, e.g.
// gemm-12608-3072-768-tn-BF16.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "types.h"

namespace reformer {

// The three partial derivatives of the trilinear form <conv(x, w), y>; they compute y, x and w respectively.
enum class Direction : uint8_t { forward, input_grad, weight_grad };
// The families by which tables and cost models are grouped.
enum class Kind : uint8_t { pointwise, depthwise, grouped, stem, filter_3x3, other };

// Arguments of an operator besides the tensors: groups, and for the others (height, width).
struct ConvGeometry {
  std::array<int64_t, 2> stride, padding, dilation;
  int64_t groups;
};

// Sizes are in elements. Plain data with no padding between members: caches hash and compare its bytes, and
// torch_reformer/problem.py mirrors it member by member.
struct ConvProblem {
  int32_t n = 1;                 // batch
  int32_t c = 1, h = 1, w = 1;   // input channels (of all groups), height, width
  int32_t k = 1, r = 1, s = 1;   // output channels, filter height and width
  int32_t pad_h = 0, pad_w = 0;  // on each side
  int32_t stride_h = 1, stride_w = 1;
  int32_t dilation_h = 1, dilation_w = 1;
  int32_t groups = 1;
  Direction direction = Direction::forward;
  DType dtype = DType::fp32;
  Layout layout = Layout::nchw;  // of input, filter and output alike
  uint8_t bias = 0;              // 1: a bias of k elements is added (forward only)

  // The fp32 NCHW problem of an input [N, C, H, W] and a weight [K, C / groups, R, S] of these sizes. All numbers have
  // to fit 32 bits, and the sizes have to match the geometry.
  static ConvProblem of(Direction direction, const int64_t* input, const int64_t* weight, const ConvGeometry& geometry);
  // Parses a find-db key. Throws std::invalid_argument if it is malformed or inconsistent.
  static ConvProblem parse(std::string_view key);
  // The find-db key; parse(p.str()) == p for every valid p.
  std::string str() const;
  // Throws std::invalid_argument if the members don't describe a convolution. Results of parse() always pass.
  void check() const;
  // True if 32 bits hold the number of pixels of a padded image and the rows and columns that windows reach. This
  // package's kernels count in 32 bits; PyTorch's own do not.
  bool fits_32_bits() const;

  int32_t out_h() const { return output_size(h, r, pad_h, stride_h, dilation_h); }
  int32_t out_w() const { return output_size(w, s, pad_w, stride_w, dilation_w); }
  int32_t group_c() const { return c / groups; }
  int32_t group_k() const { return k / groups; }

  std::array<int64_t, 4> output_sizes() const { return {n, k, out_h(), out_w()}; }
  // Sizes of the computed tensor.
  std::array<int64_t, 4> result_sizes() const {
    switch (direction) {
      case Direction::forward: return output_sizes();
      case Direction::input_grad: return {n, c, h, w};
      case Direction::weight_grad: break;
    }
    return {k, group_c(), r, s};
  }

  int64_t input_numel() const { return int64_t{n} * c * h * w; }
  int64_t weight_numel() const { return int64_t{k} * group_c() * r * s; }
  int64_t output_numel() const { return int64_t{n} * k * out_h() * out_w(); }
  double flops() const { return 2.0 * double(output_numel()) * group_c() * r * s; }

  bool is_1x1() const { return r == 1 && s == 1 && pad_h == 0 && pad_w == 0; }
  // A matrix product is the 1x1 convolution of one image with a pixel a row, in NHWC: x [h, c], w [k, c], y [h, k]. Its
  // key names the rows, the columns and the length of the sums of what is computed, and in the words of BLAS how the
  // factors lie in memory: y = x w' is tn, x = y w is nn, w = y' x is nt.
  bool is_product() const {
    return layout == Layout::nhwc && is_1x1() && groups == 1 && n == 1 && w == 1 && stride_h == 1 && stride_w == 1 &&
           dilation_h == 1 && dilation_w == 1 && !bias;
  }
  // The matrix product that a 1x1 convolution of NHWC images computes, a row for each pixel; other problems unchanged.
  ConvProblem as_product() const {
    const int64_t pixels = int64_t{n} * h * w;
    ConvProblem rows = *this;
    rows.n = 1, rows.h = int32_t(pixels), rows.w = 1;
    return rows.is_product() && rows.h == pixels ? rows : *this;
  }
  bool is_depthwise() const { return groups > 1 && groups == c; }
  Kind kind() const;

  static int32_t output_size(int64_t size, int64_t filter, int64_t pad, int64_t stride, int64_t dilation) {
    return static_cast<int32_t>((size + 2 * pad - dilation * (filter - 1) - 1) / stride + 1);
  }
};

static_assert(sizeof(ConvProblem) == 14 * sizeof(int32_t) + 4, "caches compare its bytes: no padding allowed");

inline ConvProblem ConvProblem::of(Direction direction, const int64_t* input, const int64_t* weight,
                                   const ConvGeometry& g) {
  const auto i32 = [](int64_t value) { return static_cast<int32_t>(value); };
  ConvProblem p;
  p.n = i32(input[0]), p.c = i32(input[1]), p.h = i32(input[2]), p.w = i32(input[3]);
  p.k = i32(weight[0]), p.r = i32(weight[2]), p.s = i32(weight[3]);
  p.pad_h = i32(g.padding[0]), p.pad_w = i32(g.padding[1]);
  p.stride_h = i32(g.stride[0]), p.stride_w = i32(g.stride[1]);
  p.dilation_h = i32(g.dilation[0]), p.dilation_w = i32(g.dilation[1]);
  p.groups = i32(g.groups);
  p.direction = direction;
  return p;
}

bool operator==(const ConvProblem& a, const ConvProblem& b);
inline bool operator!=(const ConvProblem& a, const ConvProblem& b) { return !(a == b); }
uint64_t hash(const ConvProblem& problem);

const char* name(Kind kind);            // "1x1", "depthwise", "grouped", "stem" (at most 4 channels), "3x3", "other"
const char* name(Direction direction);  // "forward", "input_grad", "weight_grad"

}  // namespace reformer
