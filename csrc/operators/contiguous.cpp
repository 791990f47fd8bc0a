#include "contiguous.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "checks.h"
#include "hip/copy/transpose.h"

namespace reformer {

namespace {

using torch::headeronly::ScalarType;

// Bytes per element of types that the kernels copy; else 0.
int64_t bytes_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return 4;
    case ScalarType::Half:
    case ScalarType::BFloat16: return 2;
    default: return 0;
  }
}

}  // namespace

Tensor contiguous_copy(const Tensor& tensor) {
  Tensor result = empty(tensor, tensor.sizes(), Layout::nchw);
  if (tensor.is_cpu() || tensor.numel() == 0) return torch::stable::copy_(result, tensor);
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const Planned<TransposeConfig> planned = configure_transpose(
      sizes.data(), strides.data(), tensor.dim(), bytes_of(tensor.scalar_type()), int64_t(address & -address));
  if (!planned.plan || gpu::unavailable(device_of(tensor).arch)) return torch::stable::copy_(result, tensor);
  TransposeArgs args = planned.plan->args;
  args.from = tensor.const_data_ptr(), args.to = result.mutable_data_ptr();
  const int32_t index = tensor.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  gpu::launch(*planned.plan->kernel, planned.plan->launch, {index, current_stream(index)}, args);
  return result;
}

}  // namespace reformer
