#include "tensors.h"

#include <dlfcn.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "conv/layout.h"
#include "dispatch/config.h"
#include "program/add_bias.h"

namespace reformer {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::detail::from;
using torch::stable::detail::to;

// PyTorch's strides, which treat a size of 0 as 1.
std::array<int64_t, 4> dense_strides(Sizes sizes, Layout layout) {
  const auto size = [&](size_t d) { return std::max<int64_t>(sizes[d], 1); };
  const int64_t c = size(1), h = size(2), w = size(3);
  if (layout == Layout::nhwc) return {c * h * w, 1, c * w, c};
  return {c * h * w, h * w, w, 1};
}

// GPU kernels load and store 16 bytes at a time.
bool is_aligned(const Tensor& tensor) {
  return tensor.is_cpu() || reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

// A view of a dense tensor with the layout's own strides in dimensions of size 1, which leave the stride open. The fake
// kernels promise these strides.
Tensor with_strides_of(const Tensor& tensor, Layout layout) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const auto wanted = dense_strides(sizes, layout);
  if (std::equal(wanted.begin(), wanted.end(), strides.begin())) return tensor;
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(tensor.get(), 4, sizes.data(), wanted.data(), 0, &handle));
  return Tensor(handle);
}

void call_aten(const char* op, StableIValue* stack) {
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, "", stack, TORCH_ABI_VERSION));
}

}  // namespace

// torch 2.13 has a function for any accelerator; earlier, each build has its own function of the same name.
void* current_stream(int32_t device) {
  void* stream = nullptr;
  using NativeHandle = AOTITorchError (*)(StreamHandle, void**);
  static const auto native_handle = reinterpret_cast<NativeHandle>(dlsym(RTLD_DEFAULT, "torch_stream_native_handle"));
  if (native_handle) {
    StreamHandle handle;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_stream(device, &handle));
    const AOTITorchError error = native_handle(handle, &stream);
    aoti_torch_delete_stream(handle);
    TORCH_ERROR_CODE_CHECK(error);
    return stream;
  }
  using CurrentStream = AOTITorchError (*)(int32_t, void**);
  static const auto get = [] {
    for (const char* name : {"libtorch_cuda.so", "libtorch_hip.so"})
      if (void* library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY))
        if (void* found = dlsym(library, "aoti_torch_get_current_cuda_stream"))
          return reinterpret_cast<CurrentStream>(found);
    throw std::runtime_error("this torch does not tell its current stream: torch_reformer needs torch 2.11 or later");
  }();
  TORCH_ERROR_CODE_CHECK(get(device, &stream));
  return stream;
}

Layout result_layout(const Tensor& first, const Tensor& second) {
  return result_layout(first, second, first.scalar_type() == ScalarType::Double);
}

namespace {

Tensor empty_of(const Tensor& like, Sizes sizes, Layout layout, int32_t dtype) {
  int32_t device_type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  std::array<int64_t, 64> strides;  // PyTorch's tensors have no more dimensions
  if (sizes.size() == 4) {
    const auto dense = dense_strides(sizes, layout);
    std::copy(dense.begin(), dense.end(), strides.begin());
  } else {
    int64_t step = 1;
    for (size_t d = sizes.size(); d-- > 0; step *= std::max<int64_t>(sizes[d], 1)) strides[d] = step;
  }
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(int64_t(sizes.size()), sizes.data(), strides.data(), dtype,
                                                  device_type, like.get_device_index(), &handle));
  return Tensor(handle);
}

int32_t number_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return aoti_torch_dtype_float32();
    case ScalarType::Double: return aoti_torch_dtype_float64();
    case ScalarType::Half: return aoti_torch_dtype_float16();
    case ScalarType::BFloat16: return aoti_torch_dtype_bfloat16();
    case ScalarType::Bool: return aoti_torch_dtype_bool();
    case ScalarType::Byte: return aoti_torch_dtype_uint8();
    case ScalarType::Int: return aoti_torch_dtype_int32();
    case ScalarType::Long: return aoti_torch_dtype_int64();
    default: throw std::logic_error("no operator makes tensors of this data type");
  }
}

}  // namespace

Tensor empty(const Tensor& like, Sizes sizes, Layout layout) {
  int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return empty_of(like, sizes, layout, dtype);
}
Tensor empty(const Tensor& like, Sizes sizes, Layout layout, ScalarType type) {
  return empty_of(like, sizes, layout, number_of(type));
}

bool is_dense(const Tensor& tensor, Layout layout) {
  if (!is_aligned(tensor)) return false;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const auto wanted = dense_strides(sizes, layout);
  for (size_t d = 0; d < 4; ++d)
    if (sizes[d] == 0) return true;
  for (size_t d = 0; d < 4; ++d)
    if (sizes[d] != 1 && strides[d] != wanted[d]) return false;
  return true;
}

Tensor dense(const Tensor& tensor, Layout layout) {
  if (is_dense(tensor, layout)) return tensor;
  Tensor copy = empty(tensor, tensor.sizes(), layout);
  return torch::stable::copy_(copy, tensor);
}

// Check here first: a call through the dispatcher takes longer.
Tensor contiguous_of(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

Tensor part(const Tensor& tensor, int64_t i) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  AtenTensorHandle handle;  // the offset is relative to the tensor's own, despite the parameter's name
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(tensor.get(), tensor.dim() - 1, sizes.data() + 1,
                                                        strides.data() + 1, i * strides[0], &handle));
  return Tensor(handle);
}

Tensor aligned(const Tensor& tensor) {
  const Tensor contiguous = contiguous_of(tensor);
  if (is_aligned(contiguous)) return contiguous;
  Tensor copy = torch::stable::empty_like(contiguous);
  return torch::stable::copy_(copy, contiguous);
}

ConvBuffers buffers_of(const ConvOperands& of) {
  ConvBuffers buffers{};
  const auto data = [](const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); };
  void *const first = data(of.first), *const second = data(of.second);
  switch (of.problem.direction) {
    case Direction::forward: buffers.x = first, buffers.w = second; break;
    case Direction::input_grad: buffers.w = first, buffers.y = second; break;
    case Direction::weight_grad: buffers.x = first, buffers.y = second; break;
  }
  if (of.bias) buffers.bias = of.bias->const_data_ptr();
  const int32_t device = of.first.get_device_index();
  if (!of.first.is_cpu()) buffers.queue = {device, current_stream(device), nullptr};
  return buffers;
}

namespace {

// The tensor's memory with these sizes and strides.
Tensor viewed(const Tensor& tensor, std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> strides) {
  AtenTensorHandle handle;  // the offset is relative to the tensor's own, despite the parameter's name
  TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(tensor.get(), int64_t(sizes.size()), sizes.begin(), strides.begin(), 0, &handle));
  return Tensor(handle);
}

// PyTorch's own matrix product in 16 bits: the vendor has faster kernels for it than for the same convolution. In fp32
// they would round by another setting.
Tensor run_product(const ConvOperands& of) {
  const ConvProblem& p = of.problem;
  const int64_t h = p.h, c = p.c, k = p.k;
  const Tensor a = dense(of.first, p.layout), b = dense(of.second, p.layout);
  std::optional<Tensor> first, second;
  switch (p.direction) {
    case Direction::forward: first = viewed(a, {h, c}, {c, 1}), second = viewed(b, {c, k}, {1, c}); break;
    case Direction::input_grad: first = viewed(b, {h, k}, {k, 1}), second = viewed(a, {k, c}, {c, 1}); break;
    case Direction::weight_grad: first = viewed(b, {k, h}, {1, k}), second = viewed(a, {h, c}, {c, 1}); break;
  }
  std::array<StableIValue, 2> stack{from(*first), from(*second)};
  call_aten("aten::mm", stack.data());
  const Tensor result = to<Tensor>(stack[0]);
  if (p.direction == Direction::weight_grad) return viewed(result, {k, c, 1, 1}, {c, 1, c, c});
  const int64_t columns = p.direction == Direction::forward ? k : c;
  return viewed(result, {1, columns, h, 1}, {h * columns, 1, columns, columns});
}

// PyTorch's own convolution on operands converted to this layout.
Tensor run_aten(Layout via, const ConvOperands& of) {
  const ConvProblem& p = of.problem;
  if (p.is_product() && element_size(p.dtype) == 2 && !of.first.is_cpu()) return run_product(of);
  const std::vector<int64_t> stride = {p.stride_h, p.stride_w}, padding = {p.pad_h, p.pad_w},
                             dilation = {p.dilation_h, p.dilation_w}, zeros = {0, 0};
  const Tensor a = dense(of.first, via), b = dense(of.second, via);
  Tensor result;
  if (p.direction == Direction::forward) {
    const auto bias = of.bias ? std::optional<Tensor>(*of.bias) : std::nullopt;
    std::array<StableIValue, 9> stack{from(a),        from(b),     from(bias),  from(stride),           from(padding),
                                      from(dilation), from(false), from(zeros), from(int64_t{p.groups})};
    call_aten("aten::convolution", stack.data());
    result = to<Tensor>(stack[0]);
  } else {
    // PyTorch reads only the sizes of the computed tensor.
    const auto sizes = p.result_sizes();
    const Tensor shape = empty(of.first, {sizes.data(), 4}, via);
    const bool for_input = p.direction == Direction::input_grad;
    const std::optional<std::vector<int64_t>> no_bias;
    const std::array<bool, 3> mask = {for_input, !for_input, false};
    std::array<StableIValue, 11> stack{from(b),
                                       from(for_input ? shape : a),
                                       from(for_input ? a : shape),
                                       from(no_bias),
                                       from(stride),
                                       from(padding),
                                       from(dilation),
                                       from(false),
                                       from(zeros),
                                       from(int64_t{p.groups}),
                                       from(torch::headeronly::HeaderOnlyArrayRef<bool>(mask.data(), 3))};
    call_aten("aten::convolution_backward", stack.data());
    const Tensor results[] = {to<Tensor>(stack[0]), to<Tensor>(stack[1]), to<Tensor>(stack[2])};
    result = results[for_input ? 0 : 1];
  }
  return with_strides_of(dense(result, p.layout), p.layout);
}

}  // namespace

namespace {

Tensor with_bias(const Tensor& result, const Tensor& bias) {
  const auto code = add_bias_code();
  std::array<StableIValue, 3> stack{from(result), from(std::vector<Tensor>{bias}),
                                    from(std::vector<int64_t>(code.begin(), code.end()))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("reformer::stitch", "", stack.data(), TORCH_ABI_VERSION));
  return to<std::vector<Tensor>>(stack[0])[0];
}

}  // namespace

Tensor run(const ConvPlan& plan, const ConvOperands& of) {
  if (plan.aten) return run_aten(*plan.aten, of);
  const ConvProblem& p = of.problem;
  const auto sizes = p.result_sizes();
  const Tensor result = empty(of.first, {sizes.data(), 4}, p.layout);
  ConvBuffers buffers = buffers_of(of);
  void** const results[] = {&buffers.y, &buffers.x, &buffers.w};
  *results[size_t(p.direction)] = result.mutable_data_ptr();
  std::optional<Tensor> workspace;
  if (plan.workspace_bytes > 0) {
    const int64_t elements = (plan.workspace_bytes + element_size(p.dtype) - 1) / element_size(p.dtype);
    workspace = empty(of.first, {&elements, 1}, Layout::nchw);
    buffers.workspace = workspace->mutable_data_ptr();
  }
  try {
    plan.run(buffers);
  } catch (const NotRun& why) {
    if (why.is_stale) forget_decisions();
    if (*why.what()) aoti_torch_warn(__func__, __FILE__, __LINE__, why.what());
    return run_aten(p.layout, of);
  }
  return plan.leaves_bias && of.bias ? with_bias(result, *of.bias) : result;
}

}  // namespace reformer
