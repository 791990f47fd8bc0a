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
  const std::optional<Tensor>& sum;  // to which the gradients are added in place
};

template <size_t kCount>
Tensor call_aten(const char* name, std::array<StableIValue, kCount> stack) {
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor by_aten(const Operands& o) {
  using torch::stable::detail::from;
  if (!o.sum)
    return call_aten("aten::embedding_dense_backward",
                     std::array{from(o.grad), from(o.ids), from(o.rows), from(o.padding), from(o.by_frequency)});
  Tensor sum = *o.sum;
  std::optional<Tensor> kept;
  const bool has_padding = o.padding >= 0 && o.padding < o.rows;
  if (has_padding) kept = torch::stable::clone(torch::stable::narrow(sum, 0, o.padding, 1));
  const std::vector<std::optional<Tensor>> ids = {o.ids};
  call_aten("aten::index_put_", std::array{from(sum), from(ids), from(o.grad), from(true)});
  if (has_padding) {
    Tensor row = torch::stable::narrow(sum, 0, o.padding, 1);
    torch::stable::copy_(row, *kept);
  }
  return sum;
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
  args.padding = o.padding, args.adds = o.sum.has_value();
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

// Gradients of these operands: added to o.sum, which is returned, or in a tensor of their own.
Tensor gradient(const char* op, const Operands& o, int64_t tables) {
  const int64_t count = o.ids.numel(), rows = o.rows, columns = o.columns;
  if (tables < 1 || count % tables || rows % tables)
    fail(op, count, " ids and ", rows, " rows are not those of ", tables, " tables");
  const bool wide = o.ids.scalar_type() == ScalarType::Long;
  if (o.grad.is_cpu() || (!wide && o.ids.scalar_type() != ScalarType::Int)) return by_aten(o);
  const DType type = dtype_of(op, "grad", o.grad);
  const std::string& arch = device_of(o.grad).arch;
  const bool is_empty = rows == 0 || columns == 0;
  const std::optional<int64_t> stride = is_empty || o.by_frequency ? std::nullopt : entry_stride(o.grad);
  Planned<FewRowsConfig> few;
  Planned<EmbeddingGradConfig> any;
  if (stride)
    few = configure_few_rows(type, wide, count, rows, columns, *stride, o.grad.stride(o.grad.dim() - 1), arch);
  if (!is_empty && !few.plan)
    any = configure_embedding_grad(type, wide, tables, count / tables, rows / tables, columns, arch);
  if (!is_empty && !few.plan && !any.plan) return by_aten(o);
  const std::array<int64_t, 2> sizes = {rows, columns};
  Tensor result = o.sum ? *o.sum : empty(o.grad, {sizes.data(), 2}, Layout::nchw);
  if (is_empty) return result;
  const Tensor numbers = contiguous_of(o.ids);
  const int32_t index = o.grad.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  const gpu::Queue queue{index, current_stream(index)};
  if (few.plan) {
    run_few_rows(*few.plan, o, numbers, result, queue);
    return result;
  }
  const Tensor rows_of_grad = aligned(o.grad);
  EmbeddingGradArgs args = any.plan->args;
  point_to(args, o, numbers, rows_of_grad, result);
  args.by_frequency = o.by_frequency;
  gpu::launch(*any.plan->kernel, any.plan->launch, queue, args);
  return result;
}

// Number of columns.
int64_t checked_columns(const char* op, const Tensor& grad, const Tensor& ids) {
  check_same_device(op, "grad", grad, "ids", ids);
  const int64_t columns = grad.dim() ? grad.size(grad.dim() - 1) : 0;
  if (grad.dim() != ids.dim() + 1 || grad.numel() != ids.numel() * columns)
    fail(op, "grad has size ", shown(grad.sizes()), ", which is not that of the ids, ", shown(ids.sizes()),
         ", and one more");
  return columns;
}

}  // namespace

Tensor embedding_grad(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding, bool by_frequency,
                      const std::optional<Tensor>& base, int64_t tables) {
  const char* op = "_embedding_grad";
  const int64_t columns = checked_columns(op, grad, ids);
  if (!base) return gradient(op, {grad, ids, rows, columns, padding, by_frequency, std::nullopt}, tables);
  if (base->dim() != 2 || base->size(0) != rows || base->size(1) != columns)
    fail(op, "base has size ", shown(base->sizes()), ", the result ", shown({rows, columns}));
  if (by_frequency) fail(op, "a base is added to the sum of all gradients only");
  check_same(op, "grad", grad, "base", *base);
  const std::array<int64_t, 2> sizes = {rows, columns};
  Tensor sum = empty(grad, {sizes.data(), 2}, Layout::nchw);
  torch::stable::copy_(sum, *base);
  return add_embedding_grad(sum, grad, ids, padding, tables);
}

Tensor add_embedding_grad(Tensor sum, const Tensor& grad, const Tensor& ids, int64_t padding, int64_t tables) {
  const char* op = "_add_embedding_grad_";
  const int64_t columns = checked_columns(op, grad, ids);
  check_same(op, "grad", grad, "sum", sum);
  if (sum.dim() != 2 || sum.size(1) != columns || !sum.is_contiguous())
    fail(op, "sum has size ", shown(sum.sizes()), " and strides ", shown(sum.strides()), ", not contiguous rows of ",
         columns, " columns");
  const std::optional<Tensor> to = sum;
  return gradient(op, {grad, ids, sum.size(0), columns, padding, false, to}, tables);
}

}  // namespace reformer
