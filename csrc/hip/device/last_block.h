// Determines which of several blocks ends last, so that it can continue with what all of them have stored.
#pragma once

#include "platform.h"

namespace reformer {

#if !defined(REFORMER_EMULATOR)
// Adds 1 to the counter and returns its old value. Stores by the blocks that added before are visible to this thread's
// block after a barrier. Sources: PTX ISA, "Memory consistency model"; LLVM's AMDGPU usage, "Memory model".
DEVICE unsigned count_arrival(unsigned* semaphores) {
#if defined(REFORMER_AMD)
  return __hip_atomic_fetch_add(semaphores, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
#else
  unsigned before;
  asm volatile("fence.acq_rel.gpu;\n\tatom.acq_rel.gpu.add.u32 %0, [%1], 1;\n\tfence.acq_rel.gpu;"
               : "=r"(before)
               : "l"(semaphores)
               : "memory");
  return before;
#endif
}
#endif

// True if this is the last of `blocks` blocks to call it. semaphores: 0 before the kernel and after it.
DEVICE bool is_last_block(unsigned* semaphores, int blocks) {
  SHARED bool is_last;
  barrier();
  if (thread_id() == 0) {
    is_last = count_arrival(semaphores) + 1 == static_cast<unsigned>(blocks);
    if (is_last) *semaphores = 0;
  }
  barrier();
  return is_last;
}

}  // namespace reformer
