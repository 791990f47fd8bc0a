// Numbers of rows for segment sums on a GPU: how their kernels are launched, without a GPU.
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

// For so many numbers, of 64 bits or of 32; less than 2^30, as everywhere here. Or the reason why no kernel does it.
Planned<RowNumbersConfig> configure_row_numbers(bool wide, int64_t count, const std::string& arch);
// For so many sorted numbers of so many rows.
Planned<RowNumbersConfig> configure_segment_begins(int64_t entries, int64_t rows, const std::string& arch);

}  // namespace reformer
