// What plans and cost models assume of a GPU. A plan depends on the architecture's name alone, not on the device that
// it runs on: the same choice, and the same bits, on every GPU of a kind.
#pragma once

#include <algorithm>
#include <string>

#include "conv/problem.h"

namespace reformer {

// Multiprocessors or compute units of the architecture's usual GPU. Work is cut into parts for so many.
inline int32_t usual_units(const std::string& arch) {
  struct Entry {
    const char* arch;
    int32_t units;
  };
  for (const Entry& entry : {Entry{"sm_80", 108}, Entry{"sm_86", 84}, Entry{"sm_89", 128}, Entry{"sm_90", 132},
                             Entry{"sm_100", 148}, Entry{"gfx908", 120}, Entry{"gfx90a", 110}, Entry{"gfx942", 304}})
    if (arch == entry.arch) return entry.units;
  return 100;
}

// Threads of a warp.
inline int32_t warp_size(const std::string& arch) { return arch.compare(0, 4, "gfx9") == 0 ? 64 : 32; }

// Bytes of shared memory that a block may have.
inline int32_t most_shared_bytes(const std::string& arch) {
  if (arch == "sm_80" || arch == "sm_87") return 163 << 10;
  if (arch == "sm_90" || arch == "sm_100") return 227 << 10;
  return arch.compare(0, 3, "sm_") == 0 ? 99 << 10 : 64 << 10;
}

// Expected microseconds of a kernel that reaches this share of an H200's bandwidth or arithmetic, and starts in 3: for
// ranking until weights exist for a GPU.
inline double gpu_estimate_us(const ConvProblem& p, double share) {
  constexpr double kBytesPerUs = 4.3e6, kFlopsPerUs16 = 790e6, kFlopsPerUs32 = 300e6, kStartUs = 3;
  const double elements = double(p.input_numel()) + double(p.weight_numel()) + double(p.output_numel());
  const int64_t size = element_size(p.dtype);
  return kStartUs +
         std::max(elements * double(size) / kBytesPerUs, p.flops() / (size <= 2 ? kFlopsPerUs16 : kFlopsPerUs32)) /
             share;
}

// Expected microseconds of a good kernel for the problem and of a pass that reads its result and writes another: what a
// kernel that runs a program itself competes with. On 541 problems in NHWC the selector's choice, where this allows it,
// took 1.014 times as long as the best there is, a pass after its choice of all kernels 1.17 times. Good kernels of
// depthwise convolutions reach half as much of the bandwidth as others.
inline double gpu_unfused_us(const ConvProblem& p) {
  constexpr double kPassBytesPerUs = 3.6e6, kPassUs = 2.5;
  const double share = p.groups > 1 && p.groups == p.c ? 0.4 : 0.8;
  return gpu_estimate_us(p, share) + kPassUs + 2.0 * double(p.output_numel() * element_size(p.dtype)) / kPassBytesPerUs;
}

}  // namespace reformer
