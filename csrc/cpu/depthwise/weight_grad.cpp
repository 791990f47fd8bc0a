#include "weight_grad.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/element.h"
#include "cpu/gemm/scratch.h"
#include "cpu/parallel.h"

#define REFORMER_ISA_BODY "cpu/depthwise/weight_grad_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer::depthwise {

void weight_grad(const ConvProblem& problem, const Device& device, const ConvBuffers& buffers) {
  REFORMER_BY_ISA(device.isa, weight_grad)(problem, device.threads, buffers);
}

}  // namespace reformer::depthwise
