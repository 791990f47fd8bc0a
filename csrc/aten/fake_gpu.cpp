// What PyTorch asks a GPU's backend for while it records graphs: a process that loads this before torch, and then calls
// reformer_pretend_gpu(), takes fake tensors of cuda:0, gradients, autocast and attention included. Nothing runs there.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kGpu{c10::DeviceType::CUDA, 0};
constexpr int64_t kLongestHead = 256;  // of PyTorch's flash attention

class FakeGuard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  using Stream = c10::Stream;
  Stream getStream(c10::Device) const noexcept override { return Stream(Stream::DEFAULT, kGpu); }
  Stream getDefaultStream(c10::Device) const override { return Stream(Stream::DEFAULT, kGpu); }
  Stream getNewStream(c10::Device, int) const override { return Stream(Stream::DEFAULT, kGpu); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, kGpu); }
  c10::Device getDevice() const override { return kGpu; }
  c10::Device exchangeDevice(c10::Device) const override { return kGpu; }
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }  // for each the engine of autograd has a thread
  // The engine waits for other streams' work.
  void record(void**, const Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

class FakeHooks final : public at::CUDAHooksInterface {
 public:
  explicit FakeHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  void init() const override {}
};

// As PyTorch chooses on recent GPUs, but for cuDNN's kernels, which cost about the same.
int64_t attention_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double, bool, std::optional<double>, bool grouped) {
  const bool narrow = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  const bool same_heads = query.dim() == 4 && query.sym_size(1) == key.sym_size(1);
  const bool plain = query.dim() == 4 && query.sym_size(3) == value.sym_size(3) && (grouped || same_heads);
  if (narrow && plain && !mask && query.sym_size(3) <= kLongestHead) return int64_t(sdp::SDPBackend::flash_attention);
  const bool in_groups = grouped && !same_heads;
  const bool is_float = narrow || query.scalar_type() == at::kFloat;
  return int64_t(query.dim() == 4 && is_float && !in_groups ? sdp::SDPBackend::efficient_attention
                                                            : sdp::SDPBackend::math);
}

}  // namespace

namespace at {
using CUDAHooks = FakeHooks;
// PyTorch looks for this name. A build for GPUs has hooks of its own under it, which want a driver.
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, FakeHooks)
}  // namespace at

extern "C" __attribute__((visibility("default"))) void reformer_pretend_gpu() {
  static const c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::CUDA, new FakeGuard);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(attention_of);
}
