// GPUs whose memory is the host's: a build of PyTorch for CPUs that has loaded this computes with tensors of cuda:0 and
// cuda:1. Each operator's call gets aliases of them in the CPU's memory, which it is, and runs there.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Storage;

constexpr DeviceIndex kDevices = 2;
thread_local DeviceIndex current = 0;

DeviceIndex checked(DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "CUDA error: invalid device ordinal ", int(device));
  return device;
}

Device gpu(DeviceIndex index) { return {DeviceType::CUDA, checked(index < 0 ? current : index)}; }

void* stream_of(DeviceIndex device) {
  static std::array<char, kDevices> handles;
  return &handles[size_t(checked(device))];
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
  using Stream = c10::Stream;
  DeviceType type() const override { return DeviceType::CUDA; }
  Device getDevice() const override { return gpu(current); }
  Device exchangeDevice(Device device) const override { return gpu(std::exchange(current, checked(device.index()))); }
  void setDevice(Device device) const override { current = checked(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, gpu(device.index())); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  void* getStreamNativeHandle(Stream stream) const override { return stream_of(stream.device_index()); }
  // All is done when an operator returns.
  void record(void**, const Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

class CUDAHooks final : public at::CUDAHooksInterface {
 public:
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  int getNumGPUs() const override { return kDevices; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex device) const override { current = checked(device); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current, checked(device)); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current : exchangeDevice(device);
  }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  void deviceSynchronize(DeviceIndex) const override {}
  at::Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

// Memory comes filled with ones, NaNs of the floating-point types: what is read before it is written shows.
class HostMemory final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    if (bytes) TORCH_CHECK(!posix_memalign(&data, 64, bytes), "CUDA out of memory. Tried to allocate ", bytes);
    if (data) std::memset(data, 0xff, bytes);
    return {data, data, &std::free, gpu(current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
HostMemory memory;
REGISTER_ALLOCATOR(DeviceType::CUDA, &memory)

// The same memory on another device.
c10::DataPtr shared(const Storage& storage, Device device) {
  return {storage.mutable_data(), new Storage(storage), [](void* held) { delete static_cast<Storage*>(held); }, device};
}
Storage on(Device device, const Storage& storage) {
  c10::Allocator* const allocator = device.is_cpu() ? c10::GetCPUAllocator() : &memory;
  return Storage(Storage::use_byte_size_t(), storage.nbytes(), shared(storage, device), allocator, /*resizable=*/true);
}
Tensor like(const Tensor& tensor, Storage storage) {
  const auto key = storage.device().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

// What one call is given, on the CPU, and what comes of it.
class Mirror {
 public:
  Tensor on_cpu(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (const auto& [theirs, ours] : tensors_)
      if (theirs.is_same(tensor)) return ours;
    Tensor alias = tensor;
    if (tensor.is_cuda()) {
      TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg(),
                  "host_gpu.cpp has no aliases of such tensors");
      alias = like(tensor, on_cpu(tensor.storage()));
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) alias.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    tensors_.emplace_back(tensor, alias);
    return alias;
  }

  Storage on_cpu(const Storage& storage) {
    for (const auto& [theirs, ours] : storages_)
      if (theirs.is_alias_of(storage)) return ours;
    const bool is_gpus = storage.device().is_cuda();
    if (is_gpus && device_.is_cpu()) device_ = storage.device();
    return storages_.emplace_back(storage, is_gpus ? on(at::kCPU, storage) : storage).second;
  }

  Device on_cpu(Device device) {
    if (device.is_cuda()) device_ = gpu(device.index());
    return device.is_cuda() ? Device(at::kCPU) : device;
  }

  // As GPUs' kernels do: operands come from one device, but for numbers.
  void check_one_device() const {
    for (const auto& [tensor, alias] : tensors_)
      TORCH_CHECK(tensor.device() == device_ || (tensor.is_cpu() && tensor.dim() == 0),
                  "Expected all tensors to be on the same device, but found at least two devices, ", device_, " and ",
                  tensor.device(), "!");
  }

  // Sizes and memory that the call gave its arguments: resize_, set_ and results that it was given.
  void give_back() {
    for (auto& [storage, alias] : storages_)
      if (storage.data() != alias.data() || storage.nbytes() != alias.nbytes()) {
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(shared(alias, storage.device()));
        storage.set_nbytes(alias.nbytes());
      }
    for (auto& [tensor, alias] : tensors_) {
      if (!tensor.defined() || tensor.is_same(alias)) continue;
      c10::TensorImpl* const to = tensor.unsafeGetTensorImpl();
      const Storage now = on_gpu(alias.storage());
      if (!now.is_alias_of(tensor.storage())) to->set_storage_keep_dtype(now);
      if (alias.sizes() != tensor.sizes() || alias.strides() != tensor.strides() ||
          alias.storage_offset() != tensor.storage_offset())
        to->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
    }
  }

  // An argument itself, or another view of its memory, or new memory.
  Tensor on_gpu(const Tensor& result) {
    if (!result.defined() || !result.is_cpu()) return result;
    for (const auto& [tensor, alias] : tensors_)
      if (alias.is_same(result)) return tensor;
    const Storage storage = on_gpu(result.storage());
    return storage.is_alias_of(result.storage()) ? result : like(result, storage);
  }

 private:
  Storage on_gpu(const Storage& storage) {
    for (const auto& [theirs, ours] : storages_)
      if (ours.is_alias_of(storage)) return theirs;
    if (device_.is_cpu()) return storage;
    return storages_.emplace_back(on(device_, storage), storage).first;  // of two results, maybe
  }

  std::vector<std::pair<Tensor, Tensor>> tensors_;  // as given, on the CPU
  std::vector<std::pair<Storage, Storage>> storages_;
  Device device_ = at::kCPU;  // the results'
};

template <class Tensors, class Function>
Tensors each(const Tensors& tensors, const Function& function) {
  Tensors made;
  made.reserve(tensors.size());
  for (const auto& tensor : tensors) made.push_back(function(tensor));
  return made;
}

template <class Function>
void replace_tensors(c10::IValue& value, const Function& function) {
  if (value.isTensor()) {
    value = function(value.toTensor());
  } else if (value.isTensorList()) {
    value = each(value.toTensorList(), [&](const Tensor& tensor) { return function(tensor); });
  } else if (value.isOptionalTensorList()) {
    value = each(value.toOptionalTensorList(), [&](const std::optional<Tensor>& tensor) {
      return tensor ? std::optional<Tensor>(function(*tensor)) : std::nullopt;
    });
  }
}

// Takes tensors of several devices.
bool mixes_devices(std::string_view name) {
  constexpr std::array<std::string_view, 5> all{"aten::copy_", "aten::set_", "aten::index", "aten::_index_put_impl_",
                                                "aten::index_put_"};
  return std::find(all.begin(), all.end(), name) != all.end();
}

// The operator's kernel under this key.
template <c10::DispatchKey key>
void run_on_cpu(const c10::OperatorHandle& op, c10::Stack* stack) {
  const auto& schema = op.schema();
  const at::AutoDispatchBelowADInplaceOrView guard;
  Mirror mirror;
  for (c10::IValue& value : std::span(stack->end() - long(schema.arguments().size()), stack->end())) {
    if (value.isDevice())
      value = mirror.on_cpu(value.toDevice());
    else if (value.isStorage())
      value = mirror.on_cpu(value.toStorage());
    else
      replace_tensors(value, [&](const Tensor& tensor) { return mirror.on_cpu(tensor); });
  }
  if (!mixes_devices(schema.name())) mirror.check_one_device();
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
  mirror.give_back();
  for (c10::IValue& value : std::span(stack->end() - long(schema.returns().size()), stack->end()))
    replace_tensors(value, [&](const Tensor& tensor) { return mirror.on_gpu(tensor); });
}

template <class Make>
Tensor empty_on(std::optional<Device> device, const Make& make) {
  const c10::DeviceGuard guard(gpu(device ? device->index() : -1));
  return make(&memory, c10::DispatchKeySet(c10::DispatchKey::CUDA));
}

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return empty_on(device, [&](c10::Allocator* allocator, c10::DispatchKeySet keys) {
    return at::detail::empty_generic(size, allocator, keys, c10::dtype_or_default(dtype), format);
  });
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  return empty_on(device, [&](c10::Allocator* allocator, c10::DispatchKeySet keys) {
    return at::detail::empty_strided_generic(size, stride, allocator, keys, c10::dtype_or_default(dtype));
  });
}

void record_stream(Tensor&, c10::Stream) {}

// Convolutions. Where PyTorch's own is called in C++ past the dispatcher, its forward pass ends in aten::_convolution,
// and its backward in functions of the device.

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

Gradients convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef stride,
                               IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                               int64_t groups, std::array<bool, 3> wanted) {
  Mirror mirror;
  const auto [of_input, of_weight, of_bias] = at::compositeexplicitautograd::convolution_backward(
      mirror.on_cpu(grad), mirror.on_cpu(input), mirror.on_cpu(weight), at::OptionalIntArrayRef{grad.size(1)}, stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  return {mirror.on_gpu(of_input), mirror.on_gpu(of_weight), mirror.on_gpu(of_bias)};
}

Gradients plain_backward(const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef, IntArrayRef stride,
                         IntArrayRef padding, IntArrayRef dilation, std::array<bool, 3> wanted) {
  const std::vector<int64_t> zeros(stride.size());
  return convolution_backward(grad, input, weight, stride, padding, dilation, false, zeros,
                              input.size(1) / weight.size(1), wanted);
}

std::tuple<Tensor, Tensor> depthwise_backward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                                              IntArrayRef size, IntArrayRef stride, IntArrayRef padding,
                                              IntArrayRef dilation, std::array<bool, 2> wanted) {
  const auto [of_input, of_weight, none] =
      plain_backward(grad, input, weight, size, stride, padding, dilation, {wanted[0], wanted[1], false});
  return {of_input, of_weight};
}

Gradients transposed_backward(const Tensor& grad, const Tensor& input, const Tensor& weight, IntArrayRef,
                              IntArrayRef stride, IntArrayRef padding, IntArrayRef output_padding, IntArrayRef dilation,
                              std::array<bool, 3> wanted) {
  return convolution_backward(grad, input, weight, stride, padding, dilation, true, output_padding, 1, wanted);
}

int64_t attention_by_formula(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                             std::optional<double>, bool) {
  return 0;  // at::SDPBackend::math
}

const bool are_set = [] {
  namespace native = at::native;
  native::conv_depthwise2d_backward_stub.set_cuda_dispatch_ptr(&depthwise_backward);
  native::conv_depthwise3d_backward_stub.set_cuda_dispatch_ptr(&plain_backward);
  native::slow_conv_dilated2d_backward_stub.set_cuda_dispatch_ptr(&plain_backward);
  native::slow_conv_dilated3d_backward_stub.set_cuda_dispatch_ptr(&plain_backward);
  native::slow_conv_transpose2d_backward_stub.set_cuda_dispatch_ptr(&transposed_backward);
  native::slow_conv_transpose3d_backward_stub.set_cuda_dispatch_ptr(&transposed_backward);
  native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&attention_by_formula);
  return true;
}();

// Those that the CPU has kernels for; kernels for all backends do the rest by these.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  using c10::DispatchKey;
  const auto by_cpu = [] { return torch::CppFunction::makeFromBoxedFunction<&run_on_cpu<DispatchKey::CPU>>(); };
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const bool is_own = name.name == "aten::record_stream" || name.name == "aten::empty_strided" ||
                        (name.name == "aten::empty" && name.overload_name == "memory_format");
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (name.getNamespace() == "aten" && !is_own && op && op->hasKernelForDispatchKey(DispatchKey::CPU))
      m.impl(c10::toString(name).c_str(), by_cpu());
  }
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("record_stream", TORCH_FN(record_stream));
  // Kernels for all backends that ask the GPU's for parts of them. Under the CPU's key convolutions may be the
  // package's: MAIA is a backend that nobody has, under whose key PyTorch's own are left.
  for (const char* name : {"copy_", "_convolution"}) m.impl(name, by_cpu());
  for (const char* name : {"convolution", "convolution_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu<DispatchKey::MAIA>>());
}

}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)  // under this name PyTorch looks for it
}  // namespace at

extern "C" void* host_gpu_stream(int device) { return stream_of(DeviceIndex(device)); }
extern "C" int host_gpu_current() { return current; }
extern "C" int host_gpu_exchange(int device) {
  const int before = current;
  if (device >= 0 && device < kDevices) current = DeviceIndex(device);
  return before;
}
