// Programmatic dependent launch (sm_90 and later): if gpu::Launch::pdl is set, a kernel begins before the kernel before
// it in the stream has ended, which hides the launch latency. It must not touch memory before grid_dependency_wait()
// returns. Without that flag, and on other GPUs, both functions do nothing. Source: PTX ISA, "griddepcontrol".
#pragma once

#include "platform.h"

namespace reformer {

#if defined(REFORMER_NVIDIA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The next kernel may begin once all blocks have called this, or have ended.
DEVICE void grid_dependency_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Until all kernels before this one have ended and what they wrote is there.
DEVICE void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEVICE void grid_dependency_launch() {}
DEVICE void grid_dependency_wait() {}
#endif

}  // namespace reformer
