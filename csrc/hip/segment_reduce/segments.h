// Sums of rows by segments on a GPU: launch configuration of the kernel, independent of a GPU.
#pragma once

#include "jit/gpu.h"
#include "planned.h"
#include "segments_args.h"
#include "types.h"

namespace reformer {

struct SegmentSumConfig {
  SegmentSumArgs args{};  // except for the pointers
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// Configuration for so many entries and a result of [rows][columns] of this type; or the reason why no kernel supports
// it.
Planned<SegmentSumConfig> configure_segment_sum(DType type, int64_t entries, int64_t rows, int64_t columns,
                                                const std::string& arch);

}  // namespace reformer
