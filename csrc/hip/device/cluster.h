// Clusters: blocks that run at the same time and can read each other's shared memory. sm_90 and later, if the launch
// asks for them. Source: PTX ISA, "barrier.cluster", "mapa" and "ld.shared::cluster".
#pragma once

#include "types.h"

namespace reformer {

#if defined(REFORMER_NVIDIA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kClusters = true;

// Waits for all threads of all blocks of the cluster and makes their earlier writes visible to each other.
DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// Waits for all threads of the cluster without making writes visible.
DEVICE void cluster_meet() { asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory"); }

// Loads four floats at the same place in another block's shared memory; the address is a multiple of 16.
DEVICE void load_from_block(int rank, const float* shared, float (&to)[4]) {
  const unsigned own = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{\n\t.reg .u32 there;\n\tmapa.shared::cluster.u32 there, %4, %5;\n\t"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n\t}"
      : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
      : "r"(own), "r"(rank)
      : "memory");
}
#else
constexpr bool kClusters = false;
DEVICE void cluster_barrier() {}
#if !defined(REFORMER_EMULATOR)  // which has its own
DEVICE void cluster_meet() {}
#endif
DEVICE void load_from_block(int, const float*, float (&)[4]) {}
#endif

}  // namespace reformer
