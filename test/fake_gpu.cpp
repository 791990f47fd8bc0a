// What PyTorch asks a GPU's backend for while it records graphs: a build for CPUs that has loaded this takes fake
// tensors of cuda:0, gradients and autocast included. Nothing ever runs there.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kGpu{c10::DeviceType::CUDA, 0};

class FakeGuard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  using Stream = c10::Stream;
  Stream getStream(c10::Device) const noexcept override { return Stream(Stream::DEFAULT, kGpu); }
  Stream getDefaultStream(c10::Device) const override { return Stream(Stream::DEFAULT, kGpu); }
  Stream getNewStream(c10::Device, int) const override { return Stream(Stream::DEFAULT, kGpu); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, kGpu); }
  c10::Device getDevice() const override { return kGpu; }
  c10::Device exchangeDevice(c10::Device) const override { return kGpu; }
  // The engine of autograd waits for other streams' work.
  void record(void**, const Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard)

class CUDAHooks final : public at::CUDAHooksInterface {
 public:
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  void init() const override {}
};

}  // namespace

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)  // under this name PyTorch looks for it
}  // namespace at
