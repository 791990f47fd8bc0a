// Sums of rows by segments on a GPU: how their kernel is launched, without a GPU.
#pragma once

#include "jit/gpu.h"
#include "planned.h"
#include "segments_args.h"
#include "types.h"

namespace reformer {

struct SegmentSumConfig {
  SegmentSumArgs args{};  // but for the pointers
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// For so many entries and a result of [rows][columns] of this type. Or the reason why no kernel does it.
Planned<SegmentSumConfig> configure_segment_sum(DType type, int64_t entries, int64_t rows, int64_t columns,
                                                const std::string& arch);

}  // namespace reformer
