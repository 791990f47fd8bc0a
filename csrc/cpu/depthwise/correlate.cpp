#include "correlate.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/element.h"
#include "cpu/gemm/scratch.h"
#include "cpu/parallel.h"

#define REFORMER_ISA_BODY "cpu/depthwise/correlate_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer::depthwise {

void correlate(const ConvProblem& problem, const Device& device, const ConvBuffers& buffers) {
  REFORMER_BY_ISA(device.isa, correlate)(problem, device.threads, buffers);
}

}  // namespace reformer::depthwise
