// The gradient of an embedding's table on a GPU: how its kernel is launched, without a GPU.
#pragma once

#include "embedding_args.h"
#include "jit/gpu.h"
#include "planned.h"
#include "types.h"

namespace reformer {

struct EmbeddingGradConfig {
  EmbeddingGradArgs args{};  // but for the pointers
  gpu::Launch launch;
  const gpu::Kernel* kernel = nullptr;
};

// For a table of [rows][columns] of this type and `count` ids, of 64 bits or of 32. Or the reason why no kernel does
// it.
Planned<EmbeddingGradConfig> configure_embedding_grad(DType type, bool wide_ids, int64_t count, int64_t rows,
                                                      int64_t columns, const std::string& arch);

}  // namespace reformer
