#include "embedding.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "checks.h"
#include "hip/embedding/embedding.h"

namespace reformer {
namespace {

using torch::headeronly::ScalarType;

Tensor by_aten(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding, bool by_frequency) {
  using torch::stable::detail::from;
  std::array<StableIValue, 5> stack{from(grad), from(ids), from(rows), from(padding), from(by_frequency)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::embedding_dense_backward", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace

Tensor embedding_grad(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding, bool by_frequency) {
  const char* op = "_embedding_grad";
  check_same_device(op, "grad", grad, "ids", ids);
  const int64_t count = ids.numel();
  const int64_t columns = grad.dim() ? grad.size(grad.dim() - 1) : 0;
  if (grad.dim() != ids.dim() + 1 || grad.numel() != count * columns)
    fail(op, "grad has size ", shown(grad.sizes()), ", which is not that of the ids, ", shown(ids.sizes()),
         ", and one more");
  const bool wide = ids.scalar_type() == ScalarType::Long;
  if (grad.is_cpu() || (!wide && ids.scalar_type() != ScalarType::Int))
    return by_aten(grad, ids, rows, padding, by_frequency);
  const std::array<int64_t, 2> sizes = {rows, columns};
  if (rows == 0 || columns == 0) return empty(grad, {sizes.data(), 2}, Layout::nchw);
  const Device device = device_of(grad);
  const Planned<EmbeddingGradConfig> planned =
      configure_embedding_grad(dtype_of(op, "grad", grad), wide, count, rows, columns, device.arch);
  if (!planned.plan) return by_aten(grad, ids, rows, padding, by_frequency);
  const Tensor from = aligned(grad), numbers = contiguous_of(ids);
  const Tensor result = empty(grad, {sizes.data(), 2}, Layout::nchw);
  EmbeddingGradArgs args = planned.plan->args;
  args.ids = numbers.const_data_ptr(), args.grad = from.const_data_ptr(), args.to = result.mutable_data_ptr();
  args.padding = padding, args.by_frequency = by_frequency;
  const int32_t index = grad.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  gpu::launch(*planned.plan->kernel, planned.plan->launch, {index, current_stream(index)}, args);
  return result;
}

}  // namespace reformer
