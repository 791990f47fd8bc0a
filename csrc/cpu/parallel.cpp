#include "parallel.h"

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

namespace reformer {

void parallel_range(int64_t begin, int64_t end, int64_t grain, RangeFunction function, void* context) {
  TORCH_ERROR_CODE_CHECK(torch_parallel_for(begin, end, grain, function, context));
}

int32_t max_threads() {
  uint32_t threads = 1;
  TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
  return static_cast<int32_t>(threads);
}

}  // namespace reformer
