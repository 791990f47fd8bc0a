// Programs inside the kernels of tma_gemm.cpp: on the sums, before anything is stored (kernels/tma_program.h).
#pragma once

#include "../../epilogue.h"
#include "../kernels/tma_gemm_plan.h"

namespace reformer {

// Whether a kernel of forward in NHWC, whose depth is not cut, can run the program. The outputs need not be there yet.
bool takes_tma_program(const EpilogueCall& call);

// Starts a planned kernel with the program on its sums.
void run_tma_program(const TmaGemmKernel& kernel, TmaGemmPlan& plan, const EpilogueCall& call, const void* x,
                     const void* filter, const void* bias, const gpu::Queue& queue);

}  // namespace reformer
