#include "scale.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <array>

#include "checks.h"
#include "hip/pointwise/scale.h"

namespace reformer {
namespace {

Tensor by_aten(const Tensor& tensor, const Tensor& factor) {
  using torch::stable::detail::from;
  std::array<StableIValue, 2> stack{from(tensor), from(factor)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mul_", "Tensor", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

template <class T>
bool is_one(const Tensor& factor) {
  return *static_cast<const T*>(factor.const_data_ptr()) == T(1);
}

}  // namespace

Tensor scale_in_place(Tensor tensor, const Tensor& factor) {
  const char* op = "_scale_";
  check_same_device(op, "tensor", tensor, "factor", factor);
  if (factor.numel() != 1) fail(op, "factor has size ", shown(factor.sizes()), ", which is not one element");
  const DType type = dtype_of(op, "tensor", tensor), of_factor = dtype_of(op, "factor", factor);
  if (tensor.numel() == 0) return tensor;
  if (tensor.is_cpu()) {
    const bool one = of_factor == DType::fp32   ? is_one<float>(factor)
                     : of_factor == DType::fp64 ? is_one<double>(factor)
                                                : false;
    return one ? tensor : by_aten(tensor, factor);
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const Planned<ScaleConfig> planned =
      configure_scale(type, of_factor, tensor.numel(), int64_t(address & -address), device_of(tensor).arch);
  if (!planned.plan) return by_aten(tensor, factor);
  const ScaleArgs args{factor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.numel(),
                       int(planned.plan->launch.blocks_x)};
  const int32_t index = tensor.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  gpu::launch(*planned.plan->kernel, planned.plan->launch, {index, current_stream(index)}, args);
  return tensor;
}

}  // namespace reformer
