// Replaces aten::convolution and aten::convolution_backward in the whole process by the chosen kernels, below ATen's
// own autograd and transforms.
#pragma once

namespace reformer {

// Idempotent. Must not be called while convolutions run in other threads.
void set_enabled(bool enabled);
bool is_enabled();

}  // namespace reformer
