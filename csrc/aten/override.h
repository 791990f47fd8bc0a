// aten::convolution and aten::convolution_backward, computed by the chosen kernels for the whole process, below ATen's
// own autograd and transforms.
#pragma once

namespace reformer {

// Idempotent. Not to be called while convolutions run in other threads.
void set_enabled(bool enabled);
bool is_enabled();

}  // namespace reformer
