// The parts of the GPU's language that kernels use, for clang's HIP, hipRTC, nvcc, NVRTC and the emulator of the tests
// alike. No vendor header is included, so that any of these compilers compiles a kernel unchanged.
#pragma once

// Applies the macro X, by which a kernel file defines its functions, to an argument list that is itself a macro.
#define REFORMER_APPLY(X, ...) X(__VA_ARGS__)

#if defined(REFORMER_EMULATOR)
#include "emulator.h"  // test/emulator: defines everything that this file does
#else

#if defined(__HIP__)
#define REFORMER_AMD 1
#if !defined(__global__)  // built into hipRTC
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif
#define REFORMER_LAUNCH_BOUNDS(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define DEVICE __device__ inline __attribute__((always_inline))
#else
#define REFORMER_NVIDIA 1
#define REFORMER_LAUNCH_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#define DEVICE __device__ __forceinline__
#endif

// A kernel that runs in one-dimensional blocks of at most so many threads.
#define KERNEL(threads) extern "C" __global__ void REFORMER_LAUNCH_BOUNDS(threads)
// A kernel with an occupancy: on NVIDIA GPUs the compiler limits registers so that a multiprocessor can run this many
// blocks at once. 0: no limit, as with KERNEL.
#define KERNEL_OCCUPANCY(threads, blocks) extern "C" __global__ void REFORMER_LAUNCH_BOUNDS(threads, blocks)
#define SHARED __shared__
// Shared memory whose size is set by the launch: an array of bytes with that name; the size is a multiple of 16.
// Operands of wgmma are aligned to 1024 bytes.
#define DYNAMIC_SHARED(name) extern __shared__ __attribute__((aligned(1024))) unsigned char name[]
#define UNROLL _Pragma("unroll")
#define NOT_UNROLLED _Pragma("unroll 1")
#define REFORMER_PRAGMA(text) _Pragma(#text)
#define UNROLL_BY(times) REFORMER_PRAGMA(unroll times)

// The available matrix instructions: mma.sync of sm_80 and later, or MFMA of gfx908 and later. See mma.h.
#if defined(REFORMER_NVIDIA)
#define REFORMER_MMA 1
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define REFORMER_WGMMA_GROUPS 1  // sm_90a: kernels that also exist for older GPUs use wgmma
#define REFORMER_TMA 1           // kernels for sm_90a alone, which the emulator runs, too
#endif
#elif defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define REFORMER_MFMA 1
#endif

namespace reformer {

#if defined(REFORMER_AMD) && defined(__GFX9__)
constexpr int kWarp = 64;
#else
constexpr int kWarp = 32;
#endif

#if defined(REFORMER_AMD)
DEVICE int thread_id() { return int(__builtin_amdgcn_workitem_id_x()); }
DEVICE int block_x() { return int(__builtin_amdgcn_workgroup_id_x()); }
DEVICE int block_y() { return int(__builtin_amdgcn_workgroup_id_y()); }
DEVICE int block_z() { return int(__builtin_amdgcn_workgroup_id_z()); }

// Waits for all threads of the block and makes their earlier writes visible to each other.
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Ends the kernel with an error that the host sees.
DEVICE void trap() { __builtin_trap(); }
DEVICE float bits_to_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
DEVICE unsigned float_to_bits(float value) { return __builtin_bit_cast(unsigned, value); }

// The high 32 bits of the product.
DEVICE unsigned multiply_high(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
// The full product.
DEVICE unsigned long long multiply_wide(unsigned a, unsigned b) { return static_cast<unsigned long long>(a) * b; }
// The low 32 bits of the 64-bit word (high, low) shifted right by fewer than 32 bits.
DEVICE unsigned shift_right(unsigned high, unsigned low, int by) { return __builtin_amdgcn_alignbit(high, low, by); }
#else
DEVICE int thread_id() { return int(threadIdx.x); }
DEVICE int block_x() { return int(blockIdx.x); }
DEVICE int block_y() { return int(blockIdx.y); }
DEVICE int block_z() { return int(blockIdx.z); }
DEVICE void barrier() { __syncthreads(); }
DEVICE void trap() { __trap(); }
DEVICE float bits_to_float(unsigned bits) { return __uint_as_float(bits); }
DEVICE unsigned float_to_bits(float value) { return __float_as_uint(value); }
DEVICE unsigned multiply_high(unsigned a, unsigned b) { return __umulhi(a, b); }
// The compiler's product of long longs would also multiply and add the high halves, which are 0.
DEVICE unsigned long long multiply_wide(unsigned a, unsigned b) {
  unsigned long long product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}
DEVICE unsigned shift_right(unsigned high, unsigned low, int by) {
  unsigned shifted;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(shifted) : "r"(low), "r"(high), "r"(by));
  return shifted;
}
#endif

}  // namespace reformer
#endif
