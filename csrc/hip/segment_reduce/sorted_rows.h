// Row numbers for segment sums on a GPU: launch configurations of the kernels, independent of a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "jit/gpu.h"
#include "planned.h"
#include "sorted_rows_args.h"

namespace reformer {

struct RowNumbersConfig {
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// Configuration for `count` numbers of 64 or 32 bits, fewer than 2^30 as for all these kernels; or the reason why no
// kernel supports it.
Planned<RowNumbersConfig> configure_row_numbers(bool wide, int64_t count, const std::string& arch);
// Configuration for so many sorted numbers of so many rows.
Planned<RowNumbersConfig> configure_segment_begins(int64_t entries, int64_t rows, const std::string& arch);

}  // namespace reformer
