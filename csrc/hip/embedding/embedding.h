// The gradient of an embedding table on a GPU: launch configuration of the kernel, independent of a GPU.
#pragma once

#include "embedding_args.h"
#include "jit/gpu.h"
#include "planned.h"
#include "types.h"

namespace reformer {

struct EmbeddingGradConfig {
  EmbeddingGradArgs args{};  // except for the pointers
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// Configuration for `tables` tables of [rows][columns] of this type and `count` ids of 64 or 32 bits for each; or the
// reason why no kernel supports it.
Planned<EmbeddingGradConfig> configure_embedding_grad(DType type, bool wide_ids, int64_t tables, int64_t count,
                                                      int64_t rows, int64_t columns, const std::string& arch);

}  // namespace reformer
