// Transforms convolutions whose channels an implicit GEMM does not support, or not efficiently, into an inner problem
// that it supports, with packed operands: a pure function, independent of a GPU.
// Groups of few channels: adjacent groups are merged into one wide group. x and y stay unchanged; the filter gets zeros
// where it would read another group's channels.
//
// First layers, of at most 4 channels: x gets 4 channels per pixel, zeros if it has fewer, and two adjacent pixels
// become one of 8 channels, 16 bytes. So half of the taps and half of the stride remain along a line. The padding
// becomes pixels of x, so that windows always begin at an even pixel; exactly as many windows fit as are needed. If the
// stride is odd or the filter dilated, and in fp32, a pixel by itself takes 16 bytes.
#pragma once

#include <algorithm>

#include "conv/problem.h"
#include "hip/gemm/implicit_gemm_launch.h"
#include "jit/gpu.h"
#include "pack.h"

namespace reformer {

enum class PackPart : uint8_t { pack, unpack_input_grad, unpack_weight_grad };

// A kernel of pack.inc; null if there is none.
inline const gpu::Entry* pack_kernel(PackPart part, DType dtype, int channels) {
  struct Kernel {
    PackPart part;
    DType dtype;
    int channels;
    gpu::Entry entry;
  };
  static const Kernel all[] = {
#define X(what, T, C) \
  {PackPart::what, DType::T, C, {"packed_gemm/pack", "pack_" #what "_" #T "_" #C, #what ", " #T ", " #C}},
#include "pack.inc"
#undef X
  };
  for (const Kernel& kernel : all)
    if (kernel.part == part && kernel.dtype == dtype && kernel.channels == channels) return &kernel.entry;
  return nullptr;
}

struct PackConfig {
  ConvProblem inner;
  bool packs_x = false;  // else x is read, or written, in place
  PackedImages images{};
  PackedFilter filter{};
};

namespace pack_launch {

// How many adjacent groups to merge for tiles of so many columns: as many as fit, among numbers that make whole chunks
// of 16 bytes of both input and output; if the tiles are too narrow for any, the smallest number. 0 if there is none,
// or if most of the packed filter would be zeros.
inline int joined_groups(const ConvProblem& p, int columns, int chunk) {
  constexpr int kMostChannels = 128;
  const int channels = std::max(p.group_c(), p.group_k()), most = std::max(1, kMostChannels / channels);
  int best = 0;
  for (int groups = 1; groups <= std::min(p.groups, most); ++groups) {
    if (p.groups % groups || groups * p.group_c() % chunk || groups * p.group_k() % chunk) continue;
    if (!best || groups * channels <= columns) best = groups;
  }
  return best;
}

}  // namespace pack_launch

// For tiles of so many columns. Returns the reason why the problem isn't packed, or null.
inline const char* configure_packing(const ConvProblem& p, int columns, PackConfig& config) {
  if (p.layout != Layout::nhwc) return "it reads NHWC only";
  if (!is_fp32_or_16_bit(p.dtype)) return "it computes fp32, fp16 and bf16 only";
  const int chunk = p.dtype == DType::fp32 ? 4 : 8;
  if (p.input_numel() >= int64_t{1} << 31) return "it counts elements by 32 bits";

  config = {};
  ConvProblem& inner = config.inner = p;
  PackedImages& images = config.images;
  int joined = 1, taps = 1, slot = p.group_c();
  if (p.groups > 1) {
    joined = pack_launch::joined_groups(p, columns, chunk);
    if (joined == 0) return "no number of its groups has at most 128 channels, in multiples of 16 bytes";
    if (joined == 1) return "its groups are wide enough as they are";
    inner.groups /= joined;
  } else {
    if (p.c > kPackRoom) return "it packs groups of channels, and input of at most 4 channels";
    if (p.c == chunk) return "its channels are multiples of 16 bytes as they are";
    if (p.k % chunk) return "the number of output channels is no multiple of 16 bytes";
    config.packs_x = true;
    inner.c = slot = chunk;
    images.width = p.w;
    images.pixels = 1;
    if (chunk == 2 * kPackRoom && p.stride_w % 2 == 0 && p.dilation_w == 1) {
      taps = images.pixels = 2;
      slot = kPackRoom;
      inner.s = (p.s + 1) / 2;
      inner.stride_w = p.stride_w / 2;
      inner.w = (p.out_w() - 1) * inner.stride_w + inner.s;
      inner.pad_w = 0;
      images.left = p.pad_w;
    }
    images.packed_width = inner.w;
    images.by_width = make_divider(p.w);
    images.by_packed_width = make_divider(inner.w);
  }

  PackedFilter& f = config.filter;
  f.s = p.s, f.packed_s = inner.s;
  f.channels = p.group_c(), f.packed_channels = inner.group_c();
  f.slot = slot;
  f.by_r = make_divider(p.r), f.by_s = make_divider(p.s), f.by_packed_s = make_divider(inner.s);
  f.by_channels = make_divider(f.channels), f.by_slot = make_divider(slot);
  f.by_chunks = make_divider(f.packed_channels / chunk);
  f.by_taps = make_divider(taps), f.by_groups = make_divider(joined), f.by_group_k = make_divider(p.group_k());
  return unsupported_by_implicit_gemm(inner);
}

}  // namespace reformer
