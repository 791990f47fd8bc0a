#include "override.h"

#include <c10/core/SymIntArrayRef.h>
#include <c10/util/Exception.h>

#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_compositeexplicitautograd_dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <tuple>

#include "convolution.h"

namespace reformer {
namespace {

using at::IntArrayRef;
using at::Tensor;

// The SymInts of the schema are plain numbers here: traced calls go to other dispatch keys.
IntArrayRef numbers(c10::SymIntArrayRef values) { return C10_AS_INTARRAYREF_SLOW(values); }

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   c10::SymIntArrayRef strides, c10::SymIntArrayRef paddings, c10::SymIntArrayRef dilations,
                   bool transposed, c10::SymIntArrayRef output_paddings, c10::SymInt group_count) {
  const IntArrayRef stride = numbers(strides), padding = numbers(paddings), dilation = numbers(dilations),
                    output_padding = numbers(output_paddings);
  const int64_t groups = group_count.guard_int(__FILE__, __LINE__);
  const bool has_bias = bias && bias->defined();
  if (const auto geometry = transposed ? std::nullopt : geometry_of(stride, padding, dilation, groups))
    if (input.dim() == 4 && weight.dim() == 4 && (!has_bias || is_bias_of(*bias, input, weight)))
      if (auto problem = problem_of(Direction::forward, input.sizes(), weight.sizes(), *geometry, input, weight,
                                    layout_of(input, weight))) {
        problem->bias = has_bias;
        if (!is_aten(*problem, input)) return convolve(*problem, input, weight, has_bias ? &*bias : nullptr);
      }
  return at::compositeexplicitautograd::convolution(input, weight, bias, stride, padding, dilation, transposed,
                                                    output_padding, groups);
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

Gradients convolution_backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                               at::OptionalSymIntArrayRef bias_size, c10::SymIntArrayRef strides,
                               c10::SymIntArrayRef paddings, c10::SymIntArrayRef dilations, bool transposed,
                               c10::SymIntArrayRef output_paddings, c10::SymInt group_count,
                               std::array<bool, 3> wanted) {
  const IntArrayRef stride = numbers(strides), padding = numbers(paddings), dilation = numbers(dilations),
                    output_padding = numbers(output_paddings);
  const int64_t groups = group_count.guard_int(__FILE__, __LINE__);
  at::OptionalIntArrayRef bias_sizes;
  if (bias_size) bias_sizes = numbers(*bias_size);
  const auto by_aten = [&](std::array<bool, 3> mask) {
    return at::compositeexplicitautograd::convolution_backward(grad_output, input, weight, bias_sizes, stride, padding,
                                                               dilation, transposed, output_padding, groups, mask);
  };
  const auto geometry = transposed ? std::nullopt : geometry_of(stride, padding, dilation, groups);
  if (!geometry || grad_output.dim() != 4 || input.dim() != 4 || weight.dim() != 4) return by_aten(wanted);
  const Layout layout = layout_of(input, weight);
  std::optional<ConvProblem> problems[2];
  std::array<bool, 3> rest = wanted;  // gradients left to PyTorch's own operator
  for (const Direction direction : {Direction::input_grad, Direction::weight_grad}) {
    const bool of_input = direction == Direction::input_grad;
    if (!wanted[of_input ? 0 : 1]) continue;
    const Tensor& operand = of_input ? weight : input;
    auto problem = problem_of(direction, input.sizes(), weight.sizes(), *geometry, operand, grad_output, layout);
    if (!problem || !is_result_of(grad_output, *problem)) return by_aten(wanted);
    if (is_aten(*problem, operand)) continue;
    problems[of_input ? 0 : 1] = problem;
    rest[of_input ? 0 : 1] = false;
  }
  if (!problems[0] && !problems[1]) return by_aten(wanted);
  const bool sums_bias = wanted[2] && !rest[0] && !rest[1];  // alone, PyTorch's own would cost a convolution again
  if (sums_bias) rest[2] = false;
  Gradients grads;
  if (rest[0] || rest[1]) grads = by_aten(rest);
  if (problems[0]) std::get<0>(grads) = convolve(*problems[0], weight, grad_output, nullptr);
  if (problems[1]) std::get<1>(grads) = convolve(*problems[1], input, grad_output, nullptr);
  if (sums_bias) std::get<2>(grads) = grad_output.sum({0, 2, 3});
  return grads;
}

// PyTorch warns when a kernel replaces another one; here that is intended.
class NoWarnings final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

std::unique_ptr<torch::Library> overrides[2];

}  // namespace

void set_enabled(bool enabled) {
  if (enabled == is_enabled()) return;
  std::unique_ptr<torch::Library> made[2];
  if (enabled) {
    NoWarnings ignored;
    const c10::WarningUtils::WarningHandlerGuard guard(&ignored);
    size_t i = 0;
    for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
      auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, uint32_t(__LINE__));
      library->impl("convolution", TORCH_FN(convolution));
      library->impl("convolution_backward", TORCH_FN(convolution_backward));
      made[i++] = std::move(library);
    }
  }
  std::move(std::begin(made), std::end(made), overrides);
}

bool is_enabled() { return overrides[0] != nullptr; }

}  // namespace reformer
