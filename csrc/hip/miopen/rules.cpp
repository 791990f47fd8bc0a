#include "rules.h"

#include <algorithm>
#include <numeric>

namespace reformer::miopen {
namespace {

constexpr const char* kGroups = "it supports one group only";
constexpr const char* kDilation = "it supports no dilation";
constexpr const char* kFilter = "it supports another size of filter";
constexpr const char* kPadding = "it supports another padding";
constexpr const char* kStride = "it supports another stride";
constexpr const char* kChannels = "it supports another number of channels";
constexpr const char* kNoTiles = "the matrices that it multiplies have no whole tiles";
constexpr const char* kSize = "the problem is too large for it";

constexpr int64_t power_of_2(int exponent) { return int64_t{1} << exponent; }

bool dilated(const ConvProblem& p) { return p.dilation_h != 1 || p.dilation_w != 1; }
bool strides_are(const ConvProblem& p, int32_t stride) { return p.stride_h == stride && p.stride_w == stride; }
bool filter_is(const ConvProblem& p, int32_t r, int32_t s) { return p.r == r && p.s == s; }
bool weight_grad(const ConvProblem& p) { return p.direction == Direction::weight_grad; }
bool input_grad(const ConvProblem& p) { return p.direction == Direction::input_grad; }

int64_t most_elements(const ConvProblem& p) { return std::max({p.input_numel(), p.weight_numel(), p.output_numel()}); }

// True if 32 bits can count the elements of each tensor.
bool tensors_fit_32_bits(const ConvProblem& p) { return most_elements(p) < power_of_2(31); }

// Likewise for their bytes, by a signed or unsigned number.
bool bytes_fit_32_bits(const ConvProblem& p, int bits = 31) {
  return most_elements(p) * element_size(p.dtype) < power_of_2(bits);
}

// MIOpen rounds the operands of fp16 gradients to bf16 on gfx90a unless the environment disables that; most kernels
// can't do so.
bool rounds_to_bf16(const ConvProblem& p, const std::string& arch) {
  return arch == "gfx90a" && p.dtype == DType::fp16 && p.direction != Direction::forward;
}
constexpr const char* kAlternative = "MIOpen rounds fp16 gradients to bf16 on gfx90a, and it can't";

// The convolution that a Winograd kernel computes, per group: that of the direction; for a weight gradient the
// convolution of the input (c images with n channels) with the output's gradient as the filter.
struct Seen {
  int64_t n, c, h, w, k, r, s, out_h, out_w;
};

Seen seen(const ConvProblem& p) {
  const int64_t c = p.group_c(), k = p.group_k(), out_h = p.out_h(), out_w = p.out_w();
  switch (p.direction) {
    case Direction::forward: return {p.n, c, p.h, p.w, k, p.r, p.s, out_h, out_w};
    case Direction::input_grad: return {p.n, k, out_h, out_w, c, p.r, p.s, p.h, p.w};
    case Direction::weight_grad: break;
  }
  return {c, p.n, p.h, p.w, k, out_h, out_w, p.r, p.s};
}

bool all_below(int64_t limit, std::initializer_list<int64_t> sizes) { return std::max(sizes) < limit; }

}  // namespace

const char* one_group(const ConvProblem& p, const std::string&) { return p.groups == 1 ? nullptr : kGroups; }

const char* no_dilation(const ConvProblem& p, const std::string&) { return dilated(p) ? kDilation : nullptr; }

const char* no_dilation_stride_1(const ConvProblem& p, const std::string&) {
  if (dilated(p)) return kDilation;
  return strides_are(p, 1) ? nullptr : kStride;
}

const char* alternative(const ConvProblem& p, const std::string& arch) {
  return rounds_to_bf16(p, arch) ? kAlternative : nullptr;
}

const char* pointwise(const ConvProblem& p, const std::string& arch) {
  if (!filter_is(p, 1, 1)) return kFilter;
  if (p.pad_h || p.pad_w) return kPadding;
  if (p.stride_h > 2 || p.stride_h != p.stride_w) return kStride;
  if (dilated(p)) return kDilation;
  if (p.groups != 1) return kGroups;
  return alternative(p, arch);
}

const char* pointwise_16(const ConvProblem& p, const std::string&) {
  if (!filter_is(p, 1, 1)) return kFilter;
  if (dilated(p)) return kDilation;
  if (p.groups != 1) return kGroups;
  return p.c % 16 || p.k % 16 ? kChannels : nullptr;
}

const char* asm_1x1u(const ConvProblem& p, const std::string& arch) {
  if (p.dtype == DType::fp16 && (p.c % 2 || p.k % 2)) return kChannels;
  const int64_t input = int64_t{p.c} * p.h * p.w, output = int64_t{p.k} * p.out_h() * p.out_w();
  return std::max(input, output) < power_of_2(22) ? pointwise(p, arch) : kSize;
}

const char* bwd_v1r1(const ConvProblem& p, const std::string&) {
  if (p.groups != 1) return kGroups;
  const int64_t m = int64_t{p.c} * p.r * p.s, n = int64_t{p.n} * p.out_h() * p.out_w();
  return m % 32 || n % 32 || p.k % 4 ? kNoTiles : nullptr;
}

const char* gemm_1x1_stride_1(const ConvProblem& p, const std::string&) {
  if (!filter_is(p, 1, 1)) return kFilter;
  if (p.pad_h || p.pad_w) return kPadding;
  return strides_are(p, 1) ? nullptr : kStride;
}

const char* gemm_1x1_stride_2(const ConvProblem& p, const std::string&) {
  if (!filter_is(p, 1, 1)) return kFilter;
  if (p.pad_h || p.pad_w) return kPadding;
  return strides_are(p, 2) ? nullptr : kStride;
}

const char* gemm_im2col(const ConvProblem& p, const std::string& arch) {
  const bool strided = !weight_grad(p) && !gemm_1x1_stride_2(p, arch);
  return strided || !gemm_1x1_stride_1(p, arch) ? "another GEMM of MIOpen's computes 1x1 filters" : nullptr;
}

// Grouped convolutions were found to fail, and no release of these solvers supports them.
const char* gtc_nhwc(const ConvProblem& p, const std::string& arch) {
  if (p.groups != 1) return kGroups;
  return p.dtype == DType::bf16 && arch == "gfx908" ? "it does not support this data type on gfx908" : nullptr;
}

const char* fft_5x5(const ConvProblem& p, const std::string&) {
  if (p.groups != 1) return kGroups;
  if (dilated(p)) return kDilation;
  if (!filter_is(p, 5, 5)) return kFilter;
  if (p.pad_h != 2 || p.pad_w != 2) return kPadding;
  if (!strides_are(p, 1)) return kStride;
  return p.h == p.w && (p.h == 28 || p.h == 27 || p.h == 14 || p.h == 7) ? nullptr
                                                                         : "it supports another size of image";
}

template <int R, int S, bool Strided>
const char* multipass(const ConvProblem& p, const std::string& arch) {
  if (!filter_is(p, R, S)) return kFilter;
  if (p.groups != 1) return kGroups;
  if (dilated(p)) return kDilation;
  if (!strides_are(p, 2) && (Strided || !strides_are(p, 1))) return kStride;
  if (strides_are(p, 2) && !(R == 3 && S == 3)) return kStride;
  return alternative(p, arch);
}
template const char* multipass<3, 3>(const ConvProblem&, const std::string&);
template const char* multipass<3, 3, true>(const ConvProblem&, const std::string&);
template const char* multipass<5, 5>(const ConvProblem&, const std::string&);
template const char* multipass<7, 7>(const ConvProblem&, const std::string&);
template const char* multipass<7, 1>(const ConvProblem&, const std::string&);
template const char* multipass<1, 7>(const ConvProblem&, const std::string&);

const char* gemm_weight_grad_1x1(const ConvProblem& p, const std::string& arch) {
  if (!tensors_fit_32_bits(p)) return kSize;
  return gemm_1x1_stride_1(p, arch);
}

const char* winograd_3x3(const ConvProblem& p, const std::string&) {
  if (!filter_is(p, 3, 3)) return kFilter;
  if (p.pad_h != 1 || p.pad_w != 1) return kPadding;
  if (!strides_are(p, 1)) return kStride;
  if (dilated(p)) return kDilation;
  if (p.groups != 1) return kGroups;
  const Seen q = seen(p);
  if (q.c % 2 || q.c < 18) return kChannels;
  const bool fits = all_below(power_of_2(16), {q.n, q.c, q.k, q.h, q.w}) && tensors_fit_32_bits(p) &&
                    std::max({q.c, q.k}) * std::max(q.h * q.w, int64_t{9}) <= power_of_2(28);
  return fits ? nullptr : kSize;
}

const char* winograd_rxs(const ConvProblem& p, const std::string&) {
  if (p.groups != 1) return kGroups;
  if (dilated(p)) return kDilation;
  if (p.stride_h != p.stride_w || p.stride_h > (weight_grad(p) ? 1 : 2)) return kStride;
  const bool fp16 = p.dtype == DType::fp16;
  if (weight_grad(p) && fp16) return "it supports gradients of the weights in fp32 only";
  const int64_t back_h = p.r - p.pad_h - 1, back_w = p.s - p.pad_w - 1;
  if (p.direction != Direction::forward && (back_h < 0 || back_w < 0)) return kPadding;

  // The filter is padded to whole tiles, or to pairs of tiles if it is long or strided; the kernel requires a minimum
  // of work.
  const Seen q = seen(p);
  const int64_t tile = weight_grad(p) ? 2 : 3, pair = 2 * tile, stride = p.stride_h;
  const auto up = [](int64_t value, int64_t factor) { return (value + factor - 1) / factor * factor; };
  const bool single = stride == 1 && q.s <= tile;
  const int64_t s = single ? tile : up(q.s, pair);
  const int64_t r = up(q.r, stride == 1 || q.r % pair == 1 ? tile : pair);
  const bool dilating = input_grad(p) && stride == 2;  // the gradient of the output is read with gaps
  if (q.c % ((single ? 2 : 1) * (fp16 ? 2 : 1))) return kChannels;
  if (fp16) {
    if (dilating) {
      const int64_t rows = up(q.r, pair) / pair + (q.r + tile + 1) / pair;
      if (q.c % 4 || q.c * rows * (up(q.s, pair) / pair) < 36) return kChannels;
    }
    if (r * s * q.c < tile * tile * 36) return kChannels;
  } else {
    if (dilating && (q.r < 2 || q.c % 2)) return q.r < 2 ? kFilter : kChannels;
    if ((r / tile) * (s / (dilating ? pair : tile)) * q.c < 18) return kChannels;
  }

  const bool fits =
      all_below(power_of_2(16),
                {q.n, q.c, q.k, q.h, q.w, q.out_h, q.out_w, q.r, q.s, p.pad_h, p.pad_w, back_h, back_w}) &&
      tensors_fit_32_bits(p) && q.out_h * q.out_w <= power_of_2(23) &&
      std::max({q.c * q.h * q.w, q.k * q.out_h * q.out_w, q.k * q.r * q.s, q.c * q.r * q.s}) <= power_of_2(28);
  return fits ? nullptr : kSize;
}

const char* winograd_v30(const ConvProblem& p, const std::string& arch) {
  if (dilated(p)) return kDilation;
  if (p.stride_h != p.stride_w || p.stride_h > (weight_grad(p) ? 1 : 2)) return kStride;
  if (const char* reason = alternative(p, arch)) return reason;
  const int64_t back_h = p.r - p.pad_h - 1, back_w = p.s - p.pad_w - 1;
  if (input_grad(p) && (back_h < 0 || back_w < 0)) return kPadding;
  const bool forward = p.direction == Direction::forward;
  const int32_t read_h = forward ? p.h : p.out_h(), read_w = forward ? p.w : p.out_w(), read_c = forward ? p.c : p.k;
  if (p.n <= 4 && read_c <= 4 && read_h <= 6 && read_w <= 6) return "the problem is too small for it";
  const Seen q = seen(p);
  const bool fits = all_below(power_of_2(16), {q.n, q.c, q.k, q.h, q.w, q.out_h, q.out_w, q.r, q.s, p.pad_h, p.pad_w,
                                               back_h, back_w}) &&
                    tensors_fit_32_bits(p) && q.h * q.w < power_of_2(29) && q.k * q.r * q.s < power_of_2(28) &&
                    (q.c + 1) * q.r * q.s < power_of_2(22) &&
                    std::max((q.c + 1) * q.h * q.w, (q.k + 1) * q.out_h * q.out_w) < power_of_2(29);
  return fits ? nullptr : kSize;
}

const char* winograd_v30_one_group(const ConvProblem& p, const std::string& arch) {
  return p.groups == 1 ? winograd_v30(p, arch) : kGroups;
}

const char* winograd_v30_groups(const ConvProblem& p, const std::string& arch) {
  if (p.groups == 1 && !weight_grad(p)) return "another solver of MIOpen's computes one group";
  return winograd_v30(p, arch);
}

// MIOpen tries all configurations: 1 to 4 waves per block, each with 4x64, 16x16, 64x16, 32x32 or a larger tile, and a
// depth that is a multiple of the elements per load and of the tile's depth. One of them fits if one with a single wave
// does.
const char* whole_tiles(const ConvProblem& p, const std::string&) {
  if (!bytes_fit_32_bits(p)) return kSize;
  const int64_t m = p.group_k(), n = int64_t{p.n} * p.out_h() * p.out_w(), k = int64_t{p.group_c()} * p.r * p.s;
  const int64_t load = p.dtype == DType::fp32 ? 1 : p.dtype == DType::fp16 ? 4 : 2;
  const bool whole =
      m % 4 == 0 && n % 16 == 0 && k % 4 == 0 && (m % 16 == 0 || n % 64 == 0) && m * k % 64 == 0 && n * k % 64 == 0;
  const bool tiles =
      n % 64 == 0 || m % 64 == 0 || (m % 32 == 0 && n % 32 == 0 && k % (2 * load) == 0) || k % (4 * load) == 0;
  return whole && tiles ? nullptr : kNoTiles;
}

const char* part_tiles(const ConvProblem& p, const std::string&) {
  if (!bytes_fit_32_bits(p)) return kSize;
  const int64_t m = p.group_k(), n = int64_t{p.n} * p.out_h() * p.out_w(), k = int64_t{p.group_c()} * p.r * p.s;
  return m % 16 || n % 64 || k % 4 ? nullptr : "it computes only what needs padding";
}

namespace {

// Kernels of the implicit GEMMs in assembly, described by the required divisors of the channels that they compute, of
// the batch, and of the depth of the sums. MIOpen has many more, but each problem that fits one of those also fits one
// of these. All pad an image's pixels to whole tiles; that of fp16 forward also pads the rest.
struct GtcKernel {
  Direction direction;
  DType dtype;
  int32_t channels, batch, depth;
  bool pointwise = false;  // only for filters of 1x1
};
constexpr GtcKernel kGtcKernels[] = {
    {Direction::forward, DType::fp32, 16, 1, 4},       {Direction::forward, DType::fp32, 4, 16, 16},
    {Direction::forward, DType::fp32, 4, 1, 16, true}, {Direction::forward, DType::fp16, 1, 1, 1},
    {Direction::input_grad, DType::fp32, 32, 1, 4},    {Direction::input_grad, DType::fp32, 16, 2, 4},
    {Direction::input_grad, DType::fp32, 4, 16, 16},   {Direction::input_grad, DType::fp16, 64, 1, 16},
    {Direction::input_grad, DType::fp16, 16, 4, 8},    {Direction::input_grad, DType::fp16, 4, 16, 16},
};

}  // namespace

const char* gtc_nchw(const ConvProblem& p, const std::string&) {
  const bool forward = !input_grad(p);
  if (p.groups != 1 && (forward || p.dtype == DType::fp32)) return kGroups;
  if (forward && filter_is(p, 1, 1) && p.c % 8) return "MIOpen found wrong results with 1x1 filters of other channels";
  // The kernels count the bytes of a tensor in 32 bits, which MIOpen does not check.
  if (!bytes_fit_32_bits(p, 32)) return kSize;
  // A gradient with a stride is one product per phase, with a part of the filter. The parts have at most two sizes, and
  // the depth must be a multiple for both. The kernels' divisors are powers of 2, so it suffices to check the greatest
  // common divisor.
  const auto taps = [&](int64_t filter, int32_t stride, int32_t dilation) {
    const int64_t phases = forward ? 1 : stride / std::gcd(stride, dilation);
    return std::gcd(filter, (filter + phases - 1) / phases);
  };
  const Seen q = seen(p);
  const int64_t depth = q.c * taps(p.r, p.stride_h, p.dilation_h) * taps(p.s, p.stride_w, p.dilation_w);
  for (const GtcKernel& kernel : kGtcKernels) {
    if (kernel.direction != p.direction || kernel.dtype != p.dtype) continue;
    if (kernel.pointwise && !filter_is(p, 1, 1)) continue;
    if (q.k % kernel.channels == 0 && p.n % kernel.batch == 0 && depth % kernel.depth == 0) return nullptr;
  }
  return kNoTiles;
}

// Its blocks keep images and filters in 64 KiB of local memory: a tile of 8, 16 or 32, depending on the size of the
// source, for up to 2 input and 8 output channels.
const char* direct_ocl(const ConvProblem& p, const std::string&) {
  if (dilated(p)) return kDilation;
  if (p.pad_h != p.pad_w) return kPadding;
  if (p.stride_h != p.stride_w || p.stride_h > 2) return kStride;
  const bool forward = !input_grad(p), fp16 = p.dtype == DType::fp16;
  if (!forward && (p.r <= p.pad_h || p.s <= p.pad_w)) return kPadding;
  if (forward && fp16 && p.stride_h == 2) return "it adds in fp16 there, which MIOpen found too inexact";
  if (p.groups == 1) {
    const bool square = p.r == p.s && p.r >= 3 && p.r <= 11 && p.r % 2;
    const bool wide = p.r == 5 && (p.s == 10 || p.s == 20) && p.stride_h == 2 && !p.pad_h;
    if (!square && !wide && !(fp16 && filter_is(p, 4, 4) && !p.pad_h)) return kFilter;
  }
  const Seen q = seen(p);
  const auto read = [&](int64_t size, int64_t filter) {
    const int64_t tile = size <= 8 ? 8 : size <= 16 ? 16 : 32, stride = p.stride_h;
    const int64_t out = std::max<int64_t>(stride, tile == 8 ? 1 : 2), in = std::max<int64_t>(8, tile / out) * out;
    return forward ? (in - 1) * stride + filter : (in + filter + stride - 2) / stride;
  };
  const int64_t in = std::min<int64_t>(q.c, 2), out = std::min<int64_t>(q.k, 8);
  const int64_t elements = read(q.h, q.r) * read(q.w, q.s) * in + out * in * q.r * q.s;
  if (elements * element_size(p.dtype) > power_of_2(16)) return "its blocks need more local memory than there is";
  return tensors_fit_32_bits(p) ? nullptr : kSize;
}

// In fp32 forward, blocks that share a result add to it while another block may not yet have set it to 0. With at most
// 64 input channels no blocks share a result.
const char* pointwise_ocl(const ConvProblem& p, const std::string&) {
  if (const char* reason = pointwise(p, "")) return reason;
  const bool shares = p.direction == Direction::forward && p.dtype == DType::fp32 && p.c % 16 == 0 && p.k % 16 == 0;
  if (shares && p.c > 64) return "several of its blocks add to a result, and one of them sets it to 0 first";
  return tensors_fit_32_bits(p) ? nullptr : kSize;
}

const char* naive(const ConvProblem& p, const std::string& arch) {
  if (arch == "gfx908" && p.layout == Layout::nchw) return "some of MIOpen's releases lack its kernel on gfx908";
  // Its blocks of 256 threads are counted in 32 bits.
  const int64_t images = p.layout == Layout::nchw ? std::max(p.c, p.k) : int64_t{p.groups} * std::max(p.h, p.out_h());
  return tensors_fit_32_bits(p) && p.n * images < power_of_2(24) ? nullptr : kSize;
}

}  // namespace reformer::miopen
