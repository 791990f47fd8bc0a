// Casts of many tensors at once on a GPU: how their kernel is launched, without a GPU.
#pragma once

#include <vector>

#include "casts_args.h"
#include "jit/gpu.h"
#include "types.h"

namespace reformer {

struct Cast {
  const void* from;  // null: zeros
  void* to;
  int64_t count;  // of adjacent elements
};

struct CastsLaunch {
  CastsArgs args;
  gpu::Launch launch;
};

// Null if there is no kernel for these types.
const gpu::Kernel* casts_kernel(DType from, DType to);

// Launches that do all of them, each as many as its arguments have room for.
std::vector<CastsLaunch> plan_casts(const std::vector<Cast>& casts, DType from, DType to);

}  // namespace reformer
