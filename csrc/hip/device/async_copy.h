// Copies from global to shared memory that go on while the thread computes:
//
//   async_copy<16>(shared, global, inside);  // any number of these
//   async_commit();                          // ends a group
//   async_wait<1>();                         // until all groups but the last are there, for this thread;
//   barrier();                               // and for all others
//
// NVIDIA: cp.async (PTX ISA, "Non-bulk copy"). AMD before gfx950 has none that fit: the copy is a load and a store, so
// that each waits for its load unless the compiler can move the loads of several copies in front of their stores;
// kernels that need the overlap there load into registers first and store to shared memory later. The emulator shows
// the data at the wait, no sooner.
#pragma once

#include "types.h"

namespace reformer {

#if !defined(REFORMER_EMULATOR)
// Copies kBytes, 4, 8 or 16, of which both addresses are multiples; if not valid, writes zeros and reads nothing.
template <int kBytes>
DEVICE void async_copy(void* shared, const void* global, bool valid) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
#if defined(REFORMER_NVIDIA)
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const unsigned bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16)  // past the first-level cache, which the other sizes can't be
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

// Until at most the last kPending groups of this thread are under way.
template <int kPending>
DEVICE void async_wait() {
#if defined(REFORMER_NVIDIA)
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}
#endif

}  // namespace reformer
