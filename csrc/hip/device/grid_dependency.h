// Programmatic dependent launch (sm_90 and later): if gpu::Launch::pdl is set, a kernel starts before the previous
// kernel of the stream has ended, which hides the launch latency. It must not access memory before
// grid_dependency_wait() returns. Without that flag, and on other GPUs, both functions do nothing. Source: PTX ISA,
// "griddepcontrol".
#pragma once

#include "platform.h"

namespace reformer {

#if defined(REFORMER_NVIDIA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The next kernel may start once all blocks have called this or have ended.
DEVICE void grid_dependency_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Waits until all earlier kernels have ended and their writes are visible.
DEVICE void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEVICE void grid_dependency_launch() {}
DEVICE void grid_dependency_wait() {}
#endif

}  // namespace reformer
