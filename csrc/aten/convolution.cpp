#include "convolution.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/SymIntArrayRef.h>

#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <limits>

#include "conv/layout.h"
#include "core.h"
#include "program/add_bias.h"
#include "torch_types.h"

namespace reformer {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

at::MemoryFormat format_of(Layout layout) {
  return layout == Layout::nhwc ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_cuda()) && tensor.storage().nbytes() > 0;
}

bool fits(at::IntArrayRef sizes) {
  int64_t numel = 1;
  for (int64_t size : sizes) {
    if (size < 1 || size > kMost || numel > kMost / size) return false;
    numel *= size;
  }
  return true;
}

int32_t index_of(const at::Tensor& tensor) { return tensor.is_cpu() ? -1 : int32_t(tensor.device().index()); }

at::Tensor empty(at::IntArrayRef sizes, const at::Tensor& like, at::ScalarType type, at::MemoryFormat format) {
  if (like.is_cpu()) return at::detail::empty_cpu(sizes, type, /*pin_memory=*/false, format);
  return at::empty(sizes, like.options().dtype(type), format);
}

// GPU kernels load and store 16 bytes at a time.
at::Tensor dense(const at::Tensor& tensor, at::MemoryFormat format) {
  const at::Tensor found = tensor.contiguous(format);
  const bool is_aligned = found.is_cpu() || reinterpret_cast<uintptr_t>(found.const_data_ptr()) % 16 == 0;
  return is_aligned ? found : found.clone(format);
}

at::Tensor by_aten(const ConvProblem& p, const at::Tensor& first, const at::Tensor& second, const at::Tensor* bias,
                   Layout via) {
  const std::array<int64_t, 2> stride{p.stride_h, p.stride_w}, padding{p.pad_h, p.pad_w},
      dilation{p.dilation_h, p.dilation_w}, zeros{0, 0};
  const at::MemoryFormat format = format_of(via);
  const at::Tensor a = first.contiguous(format), b = second.contiguous(format);
  at::Tensor result;
  if (p.direction == Direction::forward) {
    result = at::compositeexplicitautograd::convolution(a, b, bias ? std::optional<at::Tensor>(*bias) : std::nullopt,
                                                        stride, padding, dilation, false, zeros, p.groups);
  } else {
    const bool of_input = p.direction == Direction::input_grad;
    const at::Tensor shape = empty(p.result_sizes(), first, first.scalar_type(), format);  // only its sizes are read
    const auto grads = at::compositeexplicitautograd::convolution_backward(
        b, of_input ? shape : a, of_input ? a : shape, std::nullopt, stride, padding, dilation, false, zeros, p.groups,
        {of_input, !of_input, false});
    result = of_input ? std::get<0>(grads) : std::get<1>(grads);
  }
  return result.contiguous(format_of(p.layout));
}

at::Tensor with_bias(const at::Tensor& result, const at::Tensor& bias) {
  static const auto stitch = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("reformer::stitch", "")
                                 .typed<std::vector<at::Tensor>(const at::Tensor&, at::TensorList, at::IntArrayRef)>();
  return stitch.call(result, {bias}, add_bias_code())[0];
}

}  // namespace

std::optional<ConvGeometry> geometry_of(at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                        int64_t groups) {
  ConvGeometry geometry{{}, {}, {}, groups};
  const auto copy = [](at::IntArrayRef from, int64_t least, std::array<int64_t, 2>& to) {
    if (from.size() != 2) return false;
    for (size_t i = 0; i < 2; ++i)
      if ((to[i] = from[i]) < least || to[i] > kMost) return false;
    return true;
  };
  if (!copy(stride, 1, geometry.stride) || !copy(padding, 0, geometry.padding) || !copy(dilation, 1, geometry.dilation))
    return std::nullopt;
  if (groups < 1 || groups > kMost) return std::nullopt;
  return geometry;
}

Layout layout_of(const at::Tensor& first, const at::Tensor& second) {
  const auto has_strides = [](const at::Tensor& tensor) {
    return tensor.dim() == 4 && tensor.layout() == at::kStrided;
  };
  if (!has_strides(first) || !has_strides(second)) return Layout::nchw;  // this package has no kernels without strides
  return result_layout(first, second, first.scalar_type() == at::kDouble);
}

std::optional<ConvProblem> problem_of(Direction direction, at::IntArrayRef input, at::IntArrayRef weight,
                                      const ConvGeometry& geometry, const at::Tensor& first, const at::Tensor& second,
                                      Layout layout) {
  if (input.size() != 4 || weight.size() != 4 || !fits(input) || !fits(weight)) return std::nullopt;
  const auto dtype = dtype_of(first.scalar_type());
  if (!dtype || second.scalar_type() != first.scalar_type() || first.device() != second.device()) return std::nullopt;
  if (!has_memory(first) || !has_memory(second)) return std::nullopt;
  if (weight[0] % geometry.groups || input[1] != weight[1] * geometry.groups) return std::nullopt;
  for (size_t d = 0; d < 2; ++d)
    if (geometry.dilation[d] * (weight[2 + d] - 1) + 1 > input[2 + d] + 2 * geometry.padding[d]) return std::nullopt;
  ConvProblem p = ConvProblem::of(direction, input.data(), weight.data(), geometry);
  p.dtype = *dtype, p.layout = layout;
  if (!fits(p.output_sizes())) return std::nullopt;
  return p;
}

bool is_bias_of(const at::Tensor& bias, const at::Tensor& input, const at::Tensor& weight) {
  return bias.dim() == 1 && bias.size(0) == weight.size(0) && bias.scalar_type() == input.scalar_type() &&
         bias.device() == input.device() && has_memory(bias);
}

bool is_result_of(const at::Tensor& tensor, const ConvProblem& p) { return tensor.sizes().equals(p.output_sizes()); }

bool is_aten(const ConvProblem& problem, const at::Tensor& operand) {
  return core::conv_plan(problem, index_of(operand)).aten == int32_t(problem.layout);
}

at::Tensor convolve(const ConvProblem& p, const at::Tensor& first, const at::Tensor& second, const at::Tensor* bias) {
  const int32_t device = index_of(first);
  const ReformerConvPlan plan = core::conv_plan(p, device);
  if (plan.aten >= 0) return by_aten(p, first, second, bias, Layout(plan.aten));
  std::optional<c10::DeviceGuard> guard;
  if (device >= 0) guard.emplace(first.device());
  const at::MemoryFormat format = format_of(p.layout);
  const at::Tensor a = dense(first, format), b = dense(second, format);
  at::Tensor dense_bias, workspace;
  if (bias) dense_bias = dense(*bias, at::MemoryFormat::Contiguous);
  if (plan.workspace_bytes > 0) workspace = empty(plan.workspace_bytes, a, at::kByte, at::MemoryFormat::Contiguous);
  const at::Tensor result = empty(p.result_sizes(), a, a.scalar_type(), format);
  const auto data = [](const at::Tensor& tensor) {
    return tensor.defined() ? const_cast<void*>(tensor.const_data_ptr()) : nullptr;
  };
  ReformerConvCall call{};
  switch (p.direction) {
    case Direction::forward: call.x = data(a), call.w = data(b), call.y = data(result); break;
    case Direction::input_grad: call.w = data(a), call.y = data(b), call.x = data(result); break;
    case Direction::weight_grad: call.x = data(a), call.y = data(b), call.w = data(result); break;
  }
  call.bias = data(dense_bias), call.workspace = data(workspace), call.device = device;
  if (!core::conv_run(plan, call)) return by_aten(p, first, second, bias, p.layout);
  return bias && plan.leaves_bias ? with_bias(result, dense_bias) : result;
}

}  // namespace reformer
