// Finds the kernel for given types and widths in a table of compiled ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "jit/gpu.h"
#include "types.h"

namespace reformer {

struct TypedKernel {
  const char *type, *other;  // type of the other operand
  int elements;              // adjacent elements per access of a thread
  gpu::Kernel kernel;
};

inline const char* kernel_type(DType type) {
  constexpr const char* kNames[] = {"fp32", "fp64", "fp16", "bf16"};
  return kNames[size_t(type)];
}

// Null if there is none.
template <size_t kSize>
const gpu::Kernel* find_kernel(const TypedKernel (&kernels)[kSize], const char* type, const char* other, int elements) {
  const auto found = std::find_if(std::begin(kernels), std::end(kernels), [&](const TypedKernel& kernel) {
    return !std::strcmp(kernel.type, type) && !std::strcmp(kernel.other, other) && kernel.elements == elements;
  });
  return found == std::end(kernels) ? nullptr : &found->kernel;
}

}  // namespace reformer
