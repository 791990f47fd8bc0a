// Casts of many tensors at once on a GPU: launch configuration of the kernel, independent of a GPU.
#pragma once

#include <vector>

#include "casts_args.h"
#include "jit/gpu.h"
#include "types.h"

namespace reformer {

struct Cast {
  const void* from;  // null: write zeros
  void* to;
  int64_t count;  // of adjacent elements
};

struct CastsLaunch {
  CastsArgs args;
  gpu::Launch launch;
};

// Null if there is no kernel for these types.
const gpu::Kernel* casts_kernel(DType from, DType to);

// Launches for all the casts; each takes as many as fit into the kernel's arguments.
std::vector<CastsLaunch> plan_casts(const std::vector<Cast>& casts, DType from, DType to);

}  // namespace reformer
