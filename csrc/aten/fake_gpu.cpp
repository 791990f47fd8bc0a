// The part of a GPU backend that PyTorch queries while it records graphs. A process that loads this before torch and
// then calls reformer_pretend_gpu() accepts fake tensors on cuda:0, including gradients, autocast and attention.
// Nothing runs on such a device.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kGpu{c10::DeviceType::CUDA, 0};
constexpr int64_t kLongestHead = 256;  // the largest head of PyTorch's flash attention
constexpr int64_t kLongestHeadOfCudnn = 128;

class FakeGuard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  using Stream = c10::Stream;
  Stream getStream(c10::Device) const noexcept override { return Stream(Stream::DEFAULT, kGpu); }
  Stream getDefaultStream(c10::Device) const override { return Stream(Stream::DEFAULT, kGpu); }
  Stream getNewStream(c10::Device, int) const override { return Stream(Stream::DEFAULT, kGpu); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, kGpu); }
  c10::Device getDevice() const override { return kGpu; }
  c10::Device exchangeDevice(c10::Device) const override { return kGpu; }
  c10::DeviceIndex deviceCount() const noexcept override {
    return 0;
  }  // the autograd engine starts a thread for each device
  // The engine waits for work on other streams.
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

// PyTorch's choice on recent GPUs, except that cuDNN's kernels come last.
int64_t attention_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double, bool, std::optional<double>, bool grouped) {
  if (query.dim() != 4) return int64_t(sdp::SDPBackend::math);
  const auto& user = at::globalContext();
  const auto type = query.scalar_type();
  const bool narrow = type == at::kHalf || type == at::kBFloat16;
  const bool same_heads = query.sym_size(1) == key.sym_size(1);
  const bool is_plain = !mask && query.sym_size(3) == value.sym_size(3) && (grouped || same_heads);
  if (user.userEnabledFlashSDP() && narrow && is_plain && query.sym_size(3) <= kLongestHead)
    return int64_t(sdp::SDPBackend::flash_attention);
  if (user.userEnabledMemEfficientSDP() && (narrow || type == at::kFloat) && same_heads)
    return int64_t(sdp::SDPBackend::efficient_attention);
  if (user.userEnabledCuDNNSDP() && narrow && (grouped || same_heads) && query.sym_size(3) <= kLongestHeadOfCudnn)
    return int64_t(sdp::SDPBackend::cudnn_attention);
  return int64_t(user.userEnabledMathSDP() ? sdp::SDPBackend::math : sdp::SDPBackend::error);
}

}  // namespace

namespace at {
using CUDAHooks = FakeHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)  // the name under which PyTorch looks it up
}  // namespace at

extern "C" __attribute__((visibility("default"))) void reformer_pretend_gpu() {
  static const c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::CUDA, new FakeGuard);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(attention_of);
}
