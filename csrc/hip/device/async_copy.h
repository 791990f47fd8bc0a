// Asynchronous copies from global to shared memory:
//
//   async_copy<16>(shared, global, inside);  // any number of these
//   async_commit();                          // ends a group
//   async_wait<1>();                         // waits for all groups of this thread but the last one;
//   barrier();                               // then for those of all threads
//
// NVIDIA: cp.async (PTX ISA, "Non-bulk copy"). AMD before gfx950 has no suitable instruction: a copy is a load and a
// store there, so that each store waits for its load unless the compiler moves the loads of several copies before their
// stores. Kernels that need the overlap on AMD load into registers first and store to shared memory later. The emulator
// makes the data visible at the wait, not before.
#pragma once

#include "types.h"

namespace reformer {

#if !defined(REFORMER_EMULATOR)
// Copies kBytes (4, 8 or 16), to which both addresses are aligned. If not valid, writes zeros and reads nothing.
template <int kBytes>
DEVICE void async_copy(void* shared, const void* global, bool valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#if defined(REFORMER_NVIDIA)
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const unsigned bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16)  // bypasses the first-level cache, which only this size can
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(kBytes), "r"(bytes)
                 : "memory");
#else
  using Data = Words<kBytes>;
  *static_cast<Data*>(shared) = valid ? *static_cast<const Data*>(global) : Data{};
#endif
}

DEVICE void async_commit() {
#if defined(REFORMER_NVIDIA)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the last kPending groups of this thread are in flight.
template <int kPending>
DEVICE void async_wait() {
#if defined(REFORMER_NVIDIA)
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}
#endif

}  // namespace reformer
