#include "layer_norm.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "checks.h"
#include "hip/solvers/layer_norm.h"

namespace reformer {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::detail::from;

// By PyTorch's own operations: on CPUs, and for what no kernel computes.
template <size_t kCount>
std::vector<Tensor> unfused(const char* op, std::array<StableIValue, kCount> stack) {
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<std::vector<Tensor>>(stack[0]);
}

// The shape of contiguous rows.
LayerNormShape shape_of(const char* op, const Tensor& input, DType result, const Tensor* parameter) {
  const int64_t width = input.dim() ? input.size(input.dim() - 1) : 0;
  return {width ? input.numel() / width : 0, width, dtype_of(op, "input", input), result,
          parameter ? dtype_of(op, "the weight", *parameter) : DType::fp32};
}

void check_parameter(const char* op, const Tensor& input, const Tensor& parameter) {
  check_same_device(op, "input", input, "a parameter", parameter);
  check_not_freed(op, "a parameter", parameter);
  if (parameter.dim() != 1 || input.dim() == 0 || parameter.size(0) != input.size(input.dim() - 1))
    fail(op, "a parameter has size ", shown(parameter.sizes()), ", which the input's last dimension, of ",
         shown(input.sizes()), ", does not have");
}

const void* data(const std::optional<Tensor>& tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }

std::optional<Tensor> aligned_or_none(const std::optional<Tensor>& tensor) {
  return tensor ? std::optional<Tensor>(aligned(*tensor)) : std::nullopt;
}

}  // namespace

std::vector<Tensor> layer_norm(const Tensor& input, const std::optional<Tensor>& weight,
                               const std::optional<Tensor>& bias, double eps, ScalarType dtype) {
  const char* op = "_layer_norm";
  check_not_freed(op, "input", input);
  for (const std::optional<Tensor>* parameter : {&weight, &bias})
    if (*parameter) check_parameter(op, input, **parameter);
  const LayerNormShape shape = shape_of(op, input, dtype_of(op, "the result", dtype),
                                        weight ? &*weight
                                        : bias ? &*bias
                                               : nullptr);
  const Device device = device_of(input);
  const bool alike = !weight || !bias || weight->scalar_type() == bias->scalar_type();
  std::shared_ptr<const LayerNormRun> plan;
  if (!input.is_cpu() && alike) plan = planned_layer_norm(shape, device).plan;
  if (!plan)
    return unfused<5>("reformer::_layer_norm_unfused", {from(input), from(weight), from(bias), from(eps), from(dtype)});
  const int32_t index = input.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  const Tensor dense = aligned(input);
  const std::optional<Tensor> scale = aligned_or_none(weight), shift = aligned_or_none(bias);
  const Tensor result = empty(input, input.sizes(), Layout::nchw, dtype);
  const std::array<int64_t, 2> sizes = {2, shape.rows};
  const Tensor statistics = empty(input, {sizes.data(), 2}, Layout::nchw, ScalarType::Float);
  LayerNormArgs args{};
  args.input = dense.const_data_ptr(), args.weight = data(scale), args.bias = data(shift);
  args.result = result.mutable_data_ptr(), args.statistics = static_cast<float*>(statistics.mutable_data_ptr());
  args.eps = float(eps);
  plan->run(args, {index, current_stream(index)});
  return {result, statistics};
}

std::vector<Tensor> layer_norm_backward(const Tensor& grad, const Tensor& input, const Tensor& statistics,
                                        const std::optional<Tensor>& weight, int64_t wanted) {
  const char* op = "_layer_norm_backward";
  if (weight) check_parameter(op, input, *weight);
  check_same_device(op, "input", input, "grad", grad);
  check_same_device(op, "input", input, "statistics", statistics);
  check_not_freed(op, "input", input);
  check_not_freed(op, "grad", grad);
  check_not_freed(op, "statistics", statistics);
  const auto sizes = input.sizes(), got = grad.sizes();
  if (!std::equal(sizes.begin(), sizes.end(), got.begin(), got.end()))
    fail(op, "grad has size ", shown(got), ", the input ", shown(sizes));
  const LayerNormShape shape = shape_of(op, input, dtype_of(op, "grad", grad), weight ? &*weight : nullptr);
  const bool is_double = dtype_of(op, "statistics", statistics) == DType::fp64;
  if (statistics.numel() != 2 * shape.rows || !statistics.is_contiguous())
    fail(op, "statistics must be of size [2, ", shape.rows, "]");
  const Device device = device_of(input);
  std::shared_ptr<const LayerNormRun> plan;
  if (!input.is_cpu() && !is_double) plan = planned_layer_norm_backward(shape, wanted & 1, wanted & 6, device).plan;
  if (!plan)
    return unfused<5>("reformer::_layer_norm_backward_unfused",
                      {from(grad), from(input), from(statistics), from(weight), from(wanted)});
  const int32_t index = input.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  const Tensor dense = aligned(input), dense_grad = aligned(grad);
  const std::optional<Tensor> scale = aligned_or_none(weight);
  LayerNormArgs args{};
  args.grad = dense_grad.const_data_ptr(), args.input = dense.const_data_ptr(), args.weight = data(scale);
  args.statistics = static_cast<float*>(statistics.mutable_data_ptr());
  std::vector<Tensor> results;
  if (wanted & 1) args.result = results.emplace_back(empty(input, sizes, Layout::nchw)).mutable_data_ptr();
  const auto of_parameter = [&](int64_t bit) -> void* {
    if (!(wanted & bit)) return nullptr;
    const ScalarType type = weight ? weight->scalar_type() : ScalarType::Float;
    return results.emplace_back(empty(input, {&shape.width, 1}, Layout::nchw, type)).mutable_data_ptr();
  };
  args.of_weight = of_parameter(2), args.of_bias = of_parameter(4);
  std::optional<Tensor> workspace;
  if (const int64_t floats = plan->workspace_floats) {
    workspace = empty(input, {&floats, 1}, Layout::nchw, ScalarType::Float);
    args.partial = static_cast<float*>(workspace->mutable_data_ptr());
  }
  if (!results.empty()) plan->run(args, {index, current_stream(index)});
  return results;
}

}  // namespace reformer
