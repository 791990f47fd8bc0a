// Conversion between PyTorch's data types and this package's.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <optional>

#include "types.h"

namespace reformer {

// nullopt for a type that this package's convolutions don't support.
inline std::optional<DType> dtype_of(torch::headeronly::ScalarType type) {
  using torch::headeronly::ScalarType;
  switch (type) {
    case ScalarType::Float: return DType::fp32;
    case ScalarType::Double: return DType::fp64;
    case ScalarType::Half: return DType::fp16;
    case ScalarType::BFloat16: return DType::bf16;
    default: return std::nullopt;  // PyTorch has many types, and more with each release
  }
}

}  // namespace reformer
