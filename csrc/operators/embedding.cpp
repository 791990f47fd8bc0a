#include "embedding.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <vector>

#include "checks.h"
#include "hip/embedding/embedding.h"
#include "hip/embedding/few_rows.h"

namespace reformer {
namespace {

using torch::headeronly::ScalarType;

struct Operands {
  const Tensor &grad, &ids;
  int64_t rows, columns, padding;
  bool by_frequency;
  const std::optional<Tensor>& base;
};

Tensor by_aten(const Operands& o) {
  using torch::stable::detail::from;
  const char* const name = o.base ? "aten::index_put" : "aten::embedding_dense_backward";
  std::array<StableIValue, 5> stack;
  if (o.base)
    stack = {from(*o.base), from(std::vector<std::optional<Tensor>>{o.ids}), from(o.grad), from(true)};
  else
    stack = {from(o.grad), from(o.ids), from(o.rows), from(o.padding), from(o.by_frequency)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// Elements between the gradients of successive ids, or nothing if the distances differ.
std::optional<int64_t> entry_stride(const Tensor& grad) {
  std::optional<int64_t> stride;
  int64_t next = 0;
  for (int64_t i = grad.dim() - 2; i >= 0; --i) {
    if (grad.size(i) == 1) continue;
    if (stride && grad.stride(i) != next) return std::nullopt;
    if (!stride) stride = grad.stride(i);
    next = grad.stride(i) * grad.size(i);
  }
  return stride.value_or(0);
}

// Sets the arguments that the kernels of both kinds share.
template <class Args>
void point_to(Args& args, const Operands& o, const Tensor& ids, const Tensor& grad, Tensor& result) {
  args.ids = ids.const_data_ptr(), args.grad = grad.const_data_ptr(), args.to = result.mutable_data_ptr();
  args.padding = o.padding, args.adds = o.base.has_value();
}

void run_few_rows(const FewRowsConfig& config, const Operands& o, const Tensor& ids, Tensor& result,
                  const gpu::Queue& queue) {
  FewRowsArgs args = config.args;
  point_to(args, o, ids, o.grad, result);
  if (!config.add_kernel) return gpu::launch(*config.kernel, config.launch, queue, args);
  Tensor parts = empty(o.grad, {&config.parts_floats, 1}, Layout::nchw, ScalarType::Float);
  AddTablesArgs add = config.add;
  args.parts = static_cast<float*>(parts.mutable_data_ptr());
  add.parts = args.parts, add.to = args.to, add.adds = args.adds;
  gpu::launch(*config.kernel, config.launch, queue, args);
  gpu::launch(*config.add_kernel, config.add_launch, queue, add);
}

}  // namespace

Tensor embedding_grad(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding, bool by_frequency,
                      const std::optional<Tensor>& base, int64_t tables) {
  const char* op = "_embedding_grad";
  check_same_device(op, "grad", grad, "ids", ids);
  const int64_t count = ids.numel();
  const int64_t columns = grad.dim() ? grad.size(grad.dim() - 1) : 0;
  if (grad.dim() != ids.dim() + 1 || grad.numel() != count * columns)
    fail(op, "grad has size ", shown(grad.sizes()), ", which is not that of the ids, ", shown(ids.sizes()),
         ", and one more");
  if (tables < 1 || count % tables || rows % tables)
    fail(op, count, " ids and ", rows, " rows are not those of ", tables, " tables");
  if (base) {
    check_same(op, "grad", grad, "base", *base);
    if (base->dim() != 2 || base->size(0) != rows || base->size(1) != columns)
      fail(op, "base has size ", shown(base->sizes()), ", the result ", shown({rows, columns}));
    if (padding >= 0 || by_frequency) fail(op, "a base is added to the sum of all gradients only");
  }
  const Operands operands{grad, ids, rows, columns, padding, by_frequency, base};
  const bool wide = ids.scalar_type() == ScalarType::Long;
  if (grad.is_cpu() || (!wide && ids.scalar_type() != ScalarType::Int)) return by_aten(operands);
  const DType type = dtype_of(op, "grad", grad);
  const std::string& arch = device_of(grad).arch;
  const bool is_empty = rows == 0 || columns == 0;
  const std::optional<int64_t> stride = is_empty || by_frequency ? std::nullopt : entry_stride(grad);
  Planned<FewRowsConfig> few;
  Planned<EmbeddingGradConfig> any;
  if (stride) few = configure_few_rows(type, wide, count, rows, columns, *stride, grad.stride(grad.dim() - 1), arch);
  if (!is_empty && !few.plan)
    any = configure_embedding_grad(type, wide, tables, count / tables, rows / tables, columns, arch);
  if (!is_empty && !few.plan && !any.plan) return by_aten(operands);
  const std::array<int64_t, 2> sizes = {rows, columns};
  Tensor result = empty(grad, {sizes.data(), 2}, Layout::nchw);
  if (is_empty) return result;
  if (base) torch::stable::copy_(result, *base);
  const Tensor numbers = contiguous_of(ids);
  const int32_t index = grad.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  const gpu::Queue queue{index, current_stream(index)};
  if (few.plan) {
    run_few_rows(*few.plan, operands, numbers, result, queue);
    return result;
  }
  const Tensor rows_of_grad = aligned(grad);
  EmbeddingGradArgs args = any.plan->args;
  point_to(args, operands, numbers, rows_of_grad, result);
  args.by_frequency = by_frequency;
  gpu::launch(*any.plan->kernel, any.plan->launch, queue, args);
  return result;
}

}  // namespace reformer
