// Kernels of one stream that overlap: if the launch asks for it (gpu::Launch::early, sm_90 and later), a kernel begins
// while the one before it comes to its end, and so does without a GPU's time to start. Until it has waited it may touch
// no memory. Without the launch's asking, and on other GPUs, both functions do nothing. Source: PTX ISA,
// "griddepcontrol".
#pragma once

#include "platform.h"

namespace reformer {

#if defined(REFORMER_NVIDIA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The next kernel may begin once all blocks have called this, or have ended.
DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Until all kernels before this one have ended and what they wrote is there.
DEVICE void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEVICE void let_next_begin() {}
DEVICE void wait_for_earlier() {}
#endif

}  // namespace reformer
