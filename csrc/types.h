// Data types and layouts of tensors.
#pragma once

#include <cstdint>

namespace reformer {

enum class DType : uint8_t { fp32, fp64, fp16, bf16, int8 };
enum class Layout : uint8_t { nchw, nhwc };

constexpr bool is_16_bit(DType dtype) { return dtype == DType::fp16 || dtype == DType::bf16; }
// Types supported by matrix units.
constexpr bool is_fp32_or_16_bit(DType dtype) { return dtype == DType::fp32 || is_16_bit(dtype); }

// Bytes per element.
constexpr int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::fp64: return 8;
    case DType::fp32: return 4;
    case DType::fp16:
    case DType::bf16: return 2;
    case DType::int8: break;
  }
  return 1;
}

// Bytes of the accumulator's type: fp64 for fp64, else fp32.
constexpr int64_t sum_size(DType dtype) { return dtype == DType::fp64 ? 8 : 4; }

}  // namespace reformer
