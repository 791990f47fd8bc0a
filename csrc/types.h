// Data types and layouts of tensors.
#pragma once

#include <cstdint>

namespace reformer {

enum class DType : uint8_t { fp32, fp64, fp16, bf16, int8 };
enum class Layout : uint8_t { nchw, nhwc };

// Bytes of one element.
constexpr int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::fp64: return 8;
    case DType::fp32: return 4;
    case DType::int8: return 1;
    default: return 2;
  }
}

}  // namespace reformer
