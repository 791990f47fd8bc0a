#include "kernel.h"

#include <algorithm>
#include <utility>

#define REFORMER_ISA_BODY "cpu/gemm/kernel_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {

template <class S>
const GemmKernels<S>& gemm_kernels(Isa isa, GemmSum sum) {
  return REFORMER_BY_ISA(isa, gemm_kernels<S>)(sum);
}
template const GemmKernels<float>& gemm_kernels<float>(Isa, GemmSum);
template const GemmKernels<double>& gemm_kernels<double>(Isa, GemmSum);

GemmColumns gemm_columns(Isa isa) { return {REFORMER_BY_ISA(isa, kTileVectors), REFORMER_BY_ISA(isa, kLanes<float>)}; }

}  // namespace reformer
