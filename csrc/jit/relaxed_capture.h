// Allows loading code while a stream is captured. Capturing forbids calls that might affect other streams; loading is
// harmless.
#pragma once

namespace reformer::gpu {

class RelaxedCapture {
 public:
  using Exchange = int (*)(int*);  // cuThreadExchangeStreamCaptureMode, or HIP's

  explicit RelaxedCapture(Exchange exchange) : exchange_(exchange) { exchange_(&mode_); }
  ~RelaxedCapture() { exchange_(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;

 private:
  const Exchange exchange_;
  int mode_ = 2;  // relaxed, for both drivers
};

}  // namespace reformer::gpu
