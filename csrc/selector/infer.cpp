#include "infer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cpu/gemm/kernel.h"

#define REFORMER_ISA_BODY "selector/infer_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {

void infer(const PackedSelector& weights, const Features& features, Isa isa, float* logits) {
  REFORMER_BY_ISA(isa, infer)(weights, features, gemm_kernels<float>(isa), logits);
}

}  // namespace reformer
