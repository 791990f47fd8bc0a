#include "weight_grad.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../element.h"
#include "../gemm/scratch.h"
#include "../parallel.h"

#define REFORMER_ISA_BODY "../depthwise/weight_grad_body.h"
#include "../simd/foreach_isa.h"

namespace reformer::depthwise {

void weight_grad(const ConvProblem& problem, const Device& device, const ConvBuffers& buffers) {
  REFORMER_BY_ISA(device.isa, weight_grad)(problem, device.threads, buffers);
}

}  // namespace reformer::depthwise
