#include "max_pool.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <array>
#include <limits>

#include "checks.h"
#include "hip/pooling/max_pool.h"

namespace reformer {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::detail::from;
using torch::stable::detail::to;
using Ints = std::vector<int64_t>;

struct Geometry {
  const Ints &window, &stride, &padding, &dilation;
};

void check_pair(const char* op, const char* argument, const Ints& values, int64_t least) {
  if (values.size() != 2)
    fail(op, argument, " must have 2 values (height, width), got ", shown({values.data(), values.size()}));
  for (int64_t value : values)
    if (value < least || value > std::numeric_limits<int32_t>::max())
      fail(op, argument, " must be at least ", least, " and below 2^31, got ", shown({values.data(), values.size()}));
}

void check_geometry(const char* op, const Tensor& images, const char* name, const Geometry& g) {
  if (images.dim() != 4)
    fail(op, name, " must have 4 dimensions, got ", images.dim(), " (", shown(images.sizes()), ")");
  check_pair(op, "window", g.window, 1);
  check_pair(op, "stride", g.stride, 1);
  check_pair(op, "padding", g.padding, 0);
  check_pair(op, "dilation", g.dilation, 1);
  for (size_t d = 0; d < 2; ++d)
    if (g.padding[d] > g.window[d] / 2)
      fail(op, "padding must be at most half of the window, got ", shown({g.padding.data(), 2}));
  if (g.window[0] * g.window[1] > kMostPlaces)
    fail(op, "a window has more than ", kMostPlaces, " places: ", shown({g.window.data(), 2}));
}

// Output size by PyTorch's rule: windows that would begin behind the image are left out.
int64_t outputs_of(const char* op, int64_t size, const Geometry& g, size_t d, bool ceil_mode) {
  const int64_t stride = g.stride[d], spare = ceil_mode ? stride - 1 : 0;
  const int64_t last = size + 2 * g.padding[d] - g.dilation[d] * (g.window[d] - 1) - 1 + spare;
  if (last < 0) fail(op, "the window ", shown({g.window.data(), 2}), " does not fit into the padded input");
  const int64_t outputs = last / stride + 1;
  return ceil_mode && (outputs - 1) * stride >= size + g.padding[d] ? outputs - 1 : outputs;
}

PoolSizes axis_of(const Geometry& g, size_t d, int64_t size, int64_t outputs) {
  return {size, outputs, g.window[d], g.stride[d], g.padding[d], g.dilation[d]};
}

void launch(const MaxPoolConfig& plan, const Tensor& like, const void* from, void* places, void* to) {
  MaxPoolArgs args = plan.args;
  args.from = from, args.places = places, args.to = to;
  const int32_t index = like.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(index);
  gpu::launch(*plan.kernel, plan.launch, {index, current_stream(index)}, args);
}

}  // namespace

std::tuple<Tensor, Tensor> max_pool2d(const Tensor& input, const Ints& window, const Ints& stride, const Ints& padding,
                                      const Ints& dilation, bool ceil_mode) {
  const char* op = "_max_pool2d";
  const Geometry g{window, stride, padding, dilation};
  check_geometry(op, input, "input", g);
  const auto sizes = input.sizes();
  std::array<int64_t, 4> out{sizes[0], sizes[1]};
  for (size_t d = 0; d < 2; ++d) out[2 + d] = outputs_of(op, sizes[2 + d], g, d, ceil_mode);
  const Layout layout = result_layout(input, input);
  const Device device = device_of(input);
  const bool by_kernel = !input.is_cpu() && input.numel() != 0;
  const Planned<MaxPoolConfig> planned =
      by_kernel ? configure_max_pool(true, dtype_of(op, "input", input), layout, sizes[0], sizes[1],
                                     axis_of(g, 0, sizes[2], out[2]), axis_of(g, 1, sizes[3], out[3]), device.arch)
                : "there is nothing to do, or no GPU";
  if (!planned.plan) {
    std::array<StableIValue, 6> stack{from(input),   from(window),   from(stride),
                                      from(padding), from(dilation), from(ceil_mode)};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("reformer::_max_pool2d_unfused", "", stack.data(), TORCH_ABI_VERSION));
    return {to<Tensor>(stack[0]), to<Tensor>(stack[1])};
  }
  const Tensor images = dense(input, layout);
  const Tensor result = empty(input, {out.data(), 4}, layout);
  const Tensor places = empty(input, {out.data(), 4}, layout, ScalarType::Byte);
  launch(*planned.plan, input, images.const_data_ptr(), places.mutable_data_ptr(), result.mutable_data_ptr());
  return {result, places};
}

Tensor max_pool2d_grad(const Tensor& grad, const Tensor& places, const Ints& size, const Ints& window,
                       const Ints& stride, const Ints& padding, const Ints& dilation) {
  const char* op = "_max_pool2d_grad";
  const Geometry g{window, stride, padding, dilation};
  check_geometry(op, grad, "grad", g);
  check_same_device(op, "grad", grad, "places", places);
  check_pair(op, "size", size, 0);
  if (places.scalar_type() != ScalarType::Byte) fail(op, "places must be bytes");
  const auto out = grad.sizes();
  if (places.dim() != 4 || !std::equal(out.begin(), out.end(), places.sizes().begin()))
    fail(op, "grad has size ", shown(out), ", but places have ", shown(places.sizes()));
  const Layout layout = result_layout(places, places);
  const Device device = device_of(grad);
  const bool by_kernel = !grad.is_cpu() && grad.numel() != 0 && size[0] != 0 && size[1] != 0;
  const Planned<MaxPoolConfig> planned =
      by_kernel ? configure_max_pool(false, dtype_of(op, "grad", grad), layout, out[0], out[1],
                                     axis_of(g, 0, size[0], out[2]), axis_of(g, 1, size[1], out[3]), device.arch)
                : "there is nothing to do, or no GPU";
  if (!planned.plan) {
    std::array<StableIValue, 7> stack{from(grad),   from(places),  from(size),    from(window),
                                      from(stride), from(padding), from(dilation)};
    TORCH_ERROR_CODE_CHECK(
        torch_call_dispatcher("reformer::_max_pool2d_grad_unfused", "", stack.data(), TORCH_ABI_VERSION));
    return to<Tensor>(stack[0]);
  }
  const Tensor gradients = dense(grad, layout), named = dense(places, layout);
  const std::array<int64_t, 4> sizes = {out[0], out[1], size[0], size[1]};
  const Tensor result = empty(grad, {sizes.data(), 4}, layout);
  launch(*planned.plan, grad, gradients.const_data_ptr(), const_cast<void*>(named.const_data_ptr()),
         result.mutable_data_ptr());
  return result;
}

}  // namespace reformer
