// Expected times of kernels on GPUs without timings.
#pragma once

#include <algorithm>

#include "conv/problem.h"

namespace reformer {

// Expected microseconds of a kernel that reaches this share of an H200's bandwidth or arithmetic rate, with a launch of
// 3 us. Used to rank kernels until weights exist for a GPU.
inline double gpu_estimate_us(const ConvProblem& p, double share) {
  constexpr double kBytesPerUs = 4.3e6, kFlopsPerUs16 = 790e6, kFlopsPerUs32 = 300e6, kStartUs = 3;
  const double elements = double(p.input_numel()) + double(p.weight_numel()) + double(p.output_numel());
  const int64_t size = element_size(p.dtype);
  return kStartUs +
         std::max(elements * double(size) / kBytesPerUs, p.flops() / (size <= 2 ? kFlopsPerUs16 : kFlopsPerUs32)) /
             share;
}

// Expected microseconds of a good kernel for the problem and of a pass that reads its result and writes another: the
// alternative to a kernel that runs a program itself. On 541 problems in NHWC the selector's choice, where this
// estimate allows it, took 1.014 times as long as the best one; a pass after its choice among all kernels took 1.17
// times as long. Good kernels of depthwise convolutions reach half as much of the bandwidth as others.
inline double gpu_unfused_us(const ConvProblem& p) {
  constexpr double kPassBytesPerUs = 3.6e6, kPassUs = 2.5;
  const double share = p.groups > 1 && p.groups == p.c ? 0.4 : 0.8;
  const int64_t numel = p.direction == Direction::forward ? p.output_numel() : p.input_numel();
  return gpu_estimate_us(p, share) + kPassUs + 2.0 * double(numel * element_size(p.dtype)) / kPassBytesPerUs;
}

}  // namespace reformer
