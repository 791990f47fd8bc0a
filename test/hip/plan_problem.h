// What the libraries that plan launches for Python (implicit_gemm_launch.cpp, tma_launch.cpp) share.
#pragma once

#include <cstdint>

#include "conv/problem.h"
#include "jit/gpu.h"

namespace reformer {

// 14 numbers as ConvProblem has them, then its direction, type and layout.
inline ConvProblem problem_of(const int32_t* numbers) {
  ConvProblem p;
  int32_t* const members[] = {&p.n,     &p.c,     &p.h,        &p.w,        &p.k,          &p.r,          &p.s,
                              &p.pad_h, &p.pad_w, &p.stride_h, &p.stride_w, &p.dilation_h, &p.dilation_w, &p.groups};
  for (int32_t* member : members) *member = *numbers++;
  p.direction = static_cast<Direction>(numbers[0]);
  p.dtype = static_cast<DType>(numbers[1]);
  p.layout = static_cast<Layout>(numbers[2]);
  return p;
}

// Appends blocks x, y, z, threads, shared bytes, cluster.
inline void append(int64_t*& numbers, const gpu::Launch& launch) {
  for (const uint32_t number :
       {launch.blocks_x, launch.blocks_y, launch.blocks_z, launch.threads, launch.shared_bytes, launch.cluster_z})
    *numbers++ = number;
}

}  // namespace reformer
