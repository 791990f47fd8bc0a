#include "conv.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <limits>
#include <utility>

#include "checks.h"
#include "dispatch/decide.h"
#include "dispatch/pytorch_settings.h"
#include "plan/interned.h"

namespace reformer {
namespace {

// The caller's arguments, not yet checked.
struct Geometry {
  Sizes stride, padding, dilation;
  int64_t groups;
};
// Refers to the arrays of `g`.
Geometry geometry_of(const ConvGeometry& g) {
  return {{g.stride.data(), 2}, {g.padding.data(), 2}, {g.dilation.data(), 2}, g.groups};
}
Geometry geometry_of(const Ints& stride, const Ints& padding, const Ints& dilation, int64_t groups) {
  const auto sizes = [](const Ints& values) { return Sizes{values.data(), values.size()}; };
  return {sizes(stride), sizes(padding), sizes(dilation), groups};
}
ConvGeometry unpacked(const char* op, int64_t number) {
  try {
    return unpacked_geometry(number);
  } catch (const std::invalid_argument& error) {
    fail(op, error.what());
  }
}

void check_pair(const char* op, const char* argument, Sizes values, int64_t least) {
  if (values.size() != 2) fail(op, argument, " must have 2 values (height, width), got ", shown(values));
  for (int64_t value : values)
    if (value < least || value > std::numeric_limits<int32_t>::max())
      fail(op, argument, " must be at least ", least, " and below 2^31, got ", shown(values));
}

void check_numel(const char* op, const char* argument, Sizes sizes) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  int64_t numel = 1;
  for (int64_t size : sizes) {
    if (size < 0) fail(op, argument, " has a negative size: ", shown(sizes));
    if (size > most || (size > 0 && numel > most / size))
      fail(op, argument, " of size ", shown(sizes), " has 2^31 elements or more, which is not supported");
    numel *= size;
  }
}

void check_rank(const char* op, const char* argument, Sizes sizes) {
  if (sizes.size() != 4) fail(op, argument, " must have 4 dimensions, got ", sizes.size(), " (", shown(sizes), ")");
}

// Problem of an input and a weight of these sizes; inconsistencies are errors. Sizes may be 0.
ConvProblem checked_problem(const char* op, Direction direction, Sizes input, Sizes weight, const Geometry& g) {
  check_rank(op, "input", input);
  check_rank(op, "weight", weight);
  check_pair(op, "stride", g.stride, 1);
  check_pair(op, "padding", g.padding, 0);
  check_pair(op, "dilation", g.dilation, 1);
  check_numel(op, "input", input);
  check_numel(op, "weight", weight);
  if (g.groups < 1 || g.groups > std::numeric_limits<int32_t>::max())
    fail(op, "groups must be at least 1 and below 2^31, got ", g.groups);
  if (weight[0] % g.groups)
    fail(op, "weight has ", weight[0], " output channels, not divisible by groups = ", g.groups);
  if (input[1] % g.groups) fail(op, "input has ", input[1], " channels, not divisible by groups = ", g.groups);
  if (input[1] / g.groups != weight[1])
    fail(op, "weight of size ", shown(weight), " with groups = ", g.groups, " takes ", weight[1] * g.groups,
         " channels, but input of size ", shown(input), " has ", input[1]);
  Ints out(2);
  for (size_t d = 0; d < 2; ++d) {
    if (weight[2 + d] < 1) fail(op, "weight of size ", shown(weight), " has an empty filter");
    const int64_t padded = input[2 + d] + 2 * g.padding[d], extent = g.dilation[d] * (weight[2 + d] - 1) + 1;
    if (extent > padded)
      fail(op, "weight of size ", shown(weight), " with dilation ", g.dilation[d], " covers ", extent,
           d ? " columns" : " rows", ", but the padded input has only ", padded);
    out[d] = (padded - extent) / g.stride[d] + 1;
  }
  const Ints output = {input[0], weight[0], out[0], out[1]};
  check_numel(op, "the output", {output.data(), 4});

  return ConvProblem::of(
      direction, input.data(), weight.data(),
      {{g.stride[0], g.stride[1]}, {g.padding[0], g.padding[1]}, {g.dilation[0], g.dilation[1]}, g.groups});
}

void check_output_grad(const char* op, const ConvProblem& p, const Tensor& grad) {
  const std::array<int64_t, 4> expected = p.output_sizes();
  bool same = grad.dim() == 4;
  for (size_t d = 0; same && d < 4; ++d) same = grad.size(int64_t(d)) == expected[d];
  if (!same)
    fail(op, "grad_output has size ", shown(grad.sizes()), ", but the geometry gives ", shown({expected.data(), 4}));
}

// The result if there is nothing to sum: empty, zero, or the bias alone.
Tensor without_work(const ConvProblem& p, const Tensor& like, const Tensor* bias) {
  const auto sizes = p.result_sizes();
  Tensor result = empty(like, {sizes.data(), 4}, p.layout);
  if (result.numel() == 0) return result;
  torch::stable::zero_(result);
  if (bias) {
    const std::array<int64_t, 4> shape = {1, p.k, 1, 1};
    torch::stable::copy_(result, torch::stable::view(torch::stable::contiguous(*bias), {shape.data(), 4}));
  }
  return result;
}

// only_with_program: nothing is computed unless a kernel runs the program.
Tensor compute(const char* op, ConvProblem p, const char* first_name, const Tensor& first, const char* second_name,
               const Tensor& second, const Tensor* bias, ConvEpilogue* program = nullptr,
               bool only_with_program = false) {
  p.dtype = dtype_of(op, first_name, first);
  check_same(op, first_name, first, second_name, second);
  check_not_freed(op, first_name, first);
  check_not_freed(op, second_name, second);
  if (bias) check_not_freed(op, "bias", *bias);
  p.layout = result_layout(first, second);
  p.bias = bias != nullptr;
  if (p.input_numel() == 0 || p.weight_numel() == 0) return without_work(p, first, bias);
  const Tensor a = dense(first, p.layout), b = dense(second, p.layout);
  std::optional<Tensor> dense_bias;
  if (bias) dense_bias = aligned(*bias);
  Device device = device_of(first);
  device.tf32 = p.dtype == DType::fp32 && allows_tf32(device);
  device.deterministic = asks_for_determinism(device);
  std::optional<torch::stable::accelerator::DeviceGuard> guard;  // not on a CPU, where it throws
  if (device.kind == DeviceKind::cuda) guard.emplace(first.get_device_index());
  const ConvOperands operands{p, a, b, bias ? &*dense_bias : nullptr};
  // Shared ownership: the thread may decide something else while this plan runs.
  const std::shared_ptr<const ConvPlan> plan = decide(p, device, program ? &program->call(p) : nullptr).plan;
  if (!plan->run_with && only_with_program) return {};
  if (!plan->run_with) return run(*plan, operands);
  program->run(*plan, buffers_of(operands));
  return {};
}

// True if the convolution is the product of a matrix of pixels and one of the weight's that lies in memory as [C][K].
bool multiplies_by_columns(const ConvProblem& p, const Tensor& weight) {
  const auto strides = weight.strides();
  return p.is_1x1() && p.groups == 1 && p.stride_h == 1 && p.stride_w == 1 && p.c > 1 && p.k > 1 && strides[0] == 1 &&
         strides[1] == p.k;
}

// Computes such a convolution and the program, if a kernel of input gradients runs it: it is the input gradient of one
// whose weight lies in memory as [K][C], whose kernels read this weight as it is.
void try_as_input_grad(const char* op, const ConvProblem& p, const Tensor& input, const Tensor& weight,
                       ConvEpilogue& program) {
  ConvProblem other = p;
  other.direction = Direction::input_grad;
  std::swap(other.c, other.k);
  compute(op, other, "weight", torch::stable::transpose(weight, 0, 1), "input", input, nullptr, &program, true);
}

Tensor forward(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const Geometry& g,
               ConvEpilogue* program = nullptr) {
  const char* op = "conv2d";
  const ConvProblem p = checked_problem(op, Direction::forward, input.sizes(), weight.sizes(), g);
  if (bias) {
    if (bias->dim() != 1 || bias->size(0) != p.k)
      fail(op, "bias has size ", shown(bias->sizes()), ", but weight has ", p.k, " output channels");
    check_same(op, "input", input, "bias", *bias);
  }
  if (program && !bias && !input.is_cpu() && multiplies_by_columns(p, weight)) {
    try_as_input_grad(op, p, input, weight, *program);
    if (program->done) return {};
  }
  return compute(op, p, "input", input, "weight", weight, bias ? &*bias : nullptr, program);
}

Tensor input_grad(Sizes input_size, const Tensor& weight, const Tensor& grad_output, const Geometry& g) {
  const char* op = "conv2d_input_grad";
  const ConvProblem p = checked_problem(op, Direction::input_grad, input_size, weight.sizes(), g);
  check_output_grad(op, p, grad_output);
  return compute(op, p, "weight", weight, "grad_output", grad_output, nullptr);
}

Tensor weight_grad(Sizes weight_size, const Tensor& input, const Tensor& grad_output, const Geometry& g) {
  const char* op = "conv2d_weight_grad";
  const ConvProblem p = checked_problem(op, Direction::weight_grad, input.sizes(), weight_size, g);
  check_output_grad(op, p, grad_output);
  return compute(op, p, "input", input, "grad_output", grad_output, nullptr);
}

}  // namespace

Tensor conv2d(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const Ints& stride,
              const Ints& padding, const Ints& dilation, int64_t groups) {
  return forward(input, weight, bias, geometry_of(stride, padding, dilation, groups));
}

Tensor conv2d_with(ConvEpilogue& program, const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   const Ints& stride, const Ints& padding, const Ints& dilation, int64_t groups) {
  return forward(input, weight, bias, geometry_of(stride, padding, dilation, groups), &program);
}

Tensor conv2d_input_grad(const Ints& input_size, const Tensor& weight, const Tensor& grad_output, const Ints& stride,
                         const Ints& padding, const Ints& dilation, int64_t groups) {
  return input_grad({input_size.data(), input_size.size()}, weight, grad_output,
                    geometry_of(stride, padding, dilation, groups));
}

Tensor conv2d_weight_grad(const Ints& weight_size, const Tensor& input, const Tensor& grad_output, const Ints& stride,
                          const Ints& padding, const Ints& dilation, int64_t groups) {
  return weight_grad({weight_size.data(), weight_size.size()}, input, grad_output,
                     geometry_of(stride, padding, dilation, groups));
}

Tensor conv2d_of_geometry(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                          int64_t geometry) {
  const ConvGeometry numbers = unpacked("conv2d", geometry);
  return forward(input, weight, bias, geometry_of(numbers));
}

std::vector<Tensor> conv2d_grads(const Tensor& grad_output, const Tensor& input, const Tensor& weight, int64_t geometry,
                                 int64_t wanted) {
  const ConvGeometry numbers = unpacked("conv2d", geometry);
  const Geometry g = geometry_of(numbers);
  std::vector<Tensor> grads;
  if (wanted & 1) grads.push_back(input_grad(input.sizes(), weight, grad_output, g));
  if (wanted & 2) grads.push_back(weight_grad(weight.sizes(), input, grad_output, g));
  return grads;
}

}  // namespace reformer
