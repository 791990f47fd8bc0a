#include "trilinear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>

#include "compiled_autograd.h"
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
    return gradients(place, sizes, geometry, wanted_outputs(*this), num_outputs(), grads[0], unpacked());
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(int64_t(place));
    for (int64_t size : sizes.input) args.collect(size);
    for (int64_t size : sizes.weight) args.collect(size);
    for (const auto& values : {geometry.stride, geometry.padding, geometry.dilation})
      for (int64_t value : values) args.collect(value);
    args.collect(int64_t(geometry.groups));
    for (const SavedVariable& operand : operands) args.collect(operand, false);
  }
  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& swapped) override {
    for (SavedVariable& operand : operands) swapped.before(operand);
    variable_list tensors;
    std::array<bool, 2> is_saved;
    for (size_t i = 0; i < 2; ++i) {
      Tensor tensor = operands[i].unpack();
      is_saved[i] = tensor.defined();
      if (is_saved[i]) tensors.push_back(std::move(tensor));
    }
    const auto compute = [place = place, sizes = sizes, geometry = geometry, wanted = wanted_outputs(*this),
                          count = num_outputs(), is_saved](const variable_list& grads, const variable_list& tensors) {
      auto next = tensors.begin();
      std::array<Tensor, 2> saved;
      for (size_t i = 0; i < 2; ++i)
        if (is_saved[i]) saved[i] = *next++;
      return gradients(place, sizes, geometry, wanted, count, grads[0], saved);
    };
    variable_list found = traced(*this, swapped.get_py_compiler(), grads, std::move(tensors), compute);
    for (SavedVariable& operand : operands) swapped.after(operand);
    return found;
  }

 private:
  std::array<Tensor, 2> unpacked() { return {operands[0].unpack(), operands[1].unpack()}; }

  static variable_list gradients(Place place, const Sizes& sizes, const ConvGeometry& geometry, uint64_t wanted,
                                 size_t count, const Tensor& grad, const std::array<Tensor, 2>& operands) {
    variable_list found(count);
    if (!grad.defined()) return found;
    for (size_t i = 0; i < 2; ++i) {
      if (!(wanted >> i & 1)) continue;
      Tensor tensors[3];
      tensors[place] = grad;
      tensors[kOperands[place][1 - i]] = operands[1 - i];
      const Place other = kOperands[place][i];
      found[i] = contract(other, tensors[kOperands[other][0]], tensors[kOperands[other][1]], {}, sizes, geometry);
    }
    if (wanted >> 2 & 1) found[2] = bias_grad(grad);
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
