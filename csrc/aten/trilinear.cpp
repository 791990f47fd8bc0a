#include "trilinear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>

#include "core.h"
#include "fast_path.h"
#include "node.h"

namespace reformer {
namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The places of the form. The tables have, for each place, the direction that computes the tensor there and its
// operands.
enum Place { X, W, Y };
constexpr Direction kDirection[] = {Direction::input_grad, Direction::weight_grad, Direction::forward};
constexpr Place kOperands[][2] = {{W, Y}, {X, Y}, {X, W}};

// Sizes of the form, without those of y.
struct Sizes {
  std::array<int64_t, 4> input, weight;
};

Tensor contract(Place place, const Tensor& first, const Tensor& second, const Tensor& bias, const Sizes& sizes,
                const ConvGeometry& geometry);

std::atomic<int64_t> sums_plan{-1};

Tensor bias_grad(const Tensor& grad) {
  const bool is_alone = is_eager() && is_plain(grad) && !torch::autograd::GradMode::is_enabled();
  if (!is_alone || sums_plan < 0) return grad.sum({0, 2, 3});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return core::run_plan(sums_plan, {grad}, 1)[0];
}

struct ConvBackward final : torch::autograd::Node {
  Place place;
  Sizes sizes;
  ConvGeometry geometry;
  SavedVariable operands[2];

  std::string name() const override {
    constexpr const char* names[] = {"Conv2dInputGradBackward", "Conv2dWeightGradBackward", "Conv2dBackward"};
    return names[place];
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& operand : operands) operand.reset_data();
  }
  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list found(num_outputs());
    const Tensor& grad = grads[0];
    if (!grad.defined()) return found;
    for (size_t i = 0; i < 2; ++i) {
      if (!task_should_compute_output(i)) continue;
      Tensor tensors[3];
      tensors[place] = grad;
      tensors[kOperands[place][1 - i]] = operands[1 - i].unpack();
      const Place wanted = kOperands[place][i];
      found[i] = contract(wanted, tensors[kOperands[wanted][0]], tensors[kOperands[wanted][1]], {}, sizes, geometry);
    }
    if (found.size() > 2 && task_should_compute_output(2)) found[2] = bias_grad(grad);
    return found;
  }
};

std::optional<Tensor> try_contract(Place place, const Tensor& first, const Tensor& second, const Tensor& bias,
                                   const Sizes& sizes, const ConvGeometry& geometry) {
  if (!is_eager() || !is_plain(first) || !is_plain(second) || !is_plain(bias)) return std::nullopt;
  if (place == Y && bias.defined() && !is_bias_of(bias, first, second)) return std::nullopt;
  auto problem =
      problem_of(kDirection[place], sizes.input, sizes.weight, geometry, first, second, layout_of(first, second));
  if (!problem || (place != Y && !is_result_of(second, *problem))) return std::nullopt;
  problem->bias = bias.defined();
  const auto result = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return convolve(*problem, first, second, bias.defined() ? &bias : nullptr);
  }();
  if (!records_gradients() || !torch::autograd::compute_requires_grad(first, second, bias)) return result;
  auto node = make_node<ConvBackward>();
  node->set_next_edges(bias.defined() ? torch::autograd::collect_next_edges(first, second, bias)
                                      : torch::autograd::collect_next_edges(first, second));
  node->place = place, node->sizes = sizes, node->geometry = geometry;
  // The gradient of each operand needs the other one.
  if (first.requires_grad()) node->operands[1] = SavedVariable(second, false);
  if (second.requires_grad()) node->operands[0] = SavedVariable(first, false);
  torch::autograd::set_history(result, node);
  return result;
}

// Computes by the public operators, which batching, transforms and tangents can see.
Tensor by_dispatcher(Place place, const Tensor& first, const Tensor& second, const Sizes& sizes,
                     const ConvGeometry& g) {
  using Gradient = Tensor(c10::SymIntArrayRef, const Tensor&, const Tensor&, c10::SymIntArrayRef, c10::SymIntArrayRef,
                          c10::SymIntArrayRef, c10::SymInt);
  using Forward = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, c10::SymIntArrayRef,
                         c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymInt);
  const auto find = [](const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); };
  const auto symbolic = [](at::IntArrayRef values) { return c10::fromIntArrayRefSlow(values); };
  const auto stride = symbolic(g.stride), padding = symbolic(g.padding), dilation = symbolic(g.dilation);
  if (place == Y) {
    static const auto op = find("reformer::conv2d").typed<Forward>();
    return op.call(first, second, std::nullopt, stride, padding, dilation, g.groups);
  }
  static const auto of_input = find("reformer::conv2d_input_grad").typed<Gradient>(),
                    of_weight = find("reformer::conv2d_weight_grad").typed<Gradient>();
  return (place == X ? of_input : of_weight)
      .call(symbolic(place == X ? sizes.input : sizes.weight), first, second, stride, padding, dilation, g.groups);
}

Tensor contract(Place place, const Tensor& first, const Tensor& second, const Tensor& bias, const Sizes& sizes,
                const ConvGeometry& geometry) {
  const auto found = try_contract(place, first, second, bias, sizes, geometry);
  return found ? *found : by_dispatcher(place, first, second, sizes, geometry);
}

}  // namespace

void set_sums_plan(int64_t number) { sums_plan = number; }

std::optional<Tensor> conv2d(const Tensor& input, const Tensor& weight, const Tensor& bias,
                             const ConvGeometry& geometry) {
  if (input.dim() != 4 || weight.dim() != 4 || !(input.is_cpu() || input.is_cuda())) return std::nullopt;
  RECORD_FUNCTION("reformer::conv2d", c10::ArrayRef<const c10::IValue>{});
  Sizes sizes;
  std::copy_n(input.sizes().begin(), 4, sizes.input.begin());
  std::copy_n(weight.sizes().begin(), 4, sizes.weight.begin());
  const auto kind = input.device().type();
  if (!at::autocast::is_autocast_enabled(kind)) return try_contract(Y, input, weight, bias, sizes, geometry);
  if (!is_eager() || !is_plain(input) || !is_plain(weight) || !is_plain(bias)) return std::nullopt;
  const auto type = at::autocast::get_autocast_dtype(kind);
  const auto cast = [&](const Tensor& tensor) { return at::autocast::cached_cast(type, tensor, kind); };
  const Tensor a = cast(input), b = cast(weight), c = bias.defined() ? cast(bias) : bias;
  return try_contract(Y, a, b, c, sizes, geometry);
}

}  // namespace reformer
