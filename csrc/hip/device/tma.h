// Copies of whole tiles by Hopper's bulk copy engine (TMA): one thread starts them, and barriers in shared memory count
// the bytes that have arrived. sm_90 and later. Sources: PTX ISA, "cp.async.bulk.tensor", "mbarrier", "stmatrix".
//
// A matrix in global memory is described by its TensorMap: lines of 2-byte elements. A copy moves a box: 64 elements
// (128 bytes) of a number of lines. Elements outside of the matrix are read as zero and not written. In shared memory a
// box has the layout of OperandTile.
#pragma once

#include "operand_tile.h"
#include "tensor_map.h"

#if defined(REFORMER_EMULATOR) && defined(REFORMER_TMA)
#include "emulated_tma.h"
#endif

namespace reformer {

#if defined(REFORMER_NVIDIA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
namespace tma {

constexpr int kBoxElements = 64;  // elements of a box along a line

DEVICE unsigned shared_address(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }

// --- barriers: a phase ends after `arrivals` arrivals and the arrival of the expected bytes
DEVICE void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to the copy engine and, after a barrier, to the cluster's other blocks.
DEVICE void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void arrive_expecting(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives at the same barrier of another block of the cluster.
DEVICE void arrive_there(unsigned barrier, int rank) {
  asm volatile(
      "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Waits until the phase of this parity has ended.
DEVICE void wait(unsigned barrier, int parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\tagain:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra again;\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// --- copies
DEVICE void prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
// Loads the box whose first element is `element` of line `line`; likewise for tensors of four dimensions, innermost
// first.
DEVICE void load(const TensorMap& map, unsigned to, unsigned barrier, int element, int line) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(to),
      "l"(&map), "r"(barrier), "r"(element), "r"(line)
      : "memory");
}
DEVICE void load(const TensorMap& map, unsigned to, unsigned barrier, int a, int b, int c, int d) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}
// Copies into both blocks of a cluster; the barriers of both count the bytes.
DEVICE void load_for_both(const TensorMap& map, unsigned to, unsigned barrier, int element, int line) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(element), "r"(line), "h"(static_cast<unsigned short>(3))
      : "memory");
}
DEVICE void load_for_both(const TensorMap& map, unsigned to, unsigned barrier, int a, int b, int c, int d) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(a), "r"(b), "r"(c), "r"(d), "h"(static_cast<unsigned short>(3))
      : "memory");
}
// For maps that read images by windows (gpu::windows_map, im2col mode). Loads the channels from `channel` on for as
// many windows as the map's box has pixels. The first window begins at (w, h, n); of each window the pixel at this
// offset (0 to 255) from its beginning is loaded.
DEVICE void load_windows(const TensorMap& map, unsigned to, unsigned barrier, int channel, int w, int h, int n,
                         int offset_w, int offset_h) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], [%2], {%7, %8};" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(channel), "r"(w), "r"(h), "r"(n), "h"(static_cast<unsigned short>(offset_w)),
      "h"(static_cast<unsigned short>(offset_h))
      : "memory");
}
DEVICE void load_windows_for_both(const TensorMap& map, unsigned to, unsigned barrier, int channel, int w, int h, int n,
                                  int offset_w, int offset_h) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(channel), "r"(w), "r"(h), "r"(n), "h"(static_cast<unsigned short>(offset_w)),
      "h"(static_cast<unsigned short>(offset_h)), "h"(static_cast<unsigned short>(3))
      : "memory");
}
DEVICE void store(const TensorMap& map, unsigned from, int element, int line) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
               "r"(from), "r"(element), "r"(line)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
DEVICE void store(const TensorMap& map, unsigned from, int a, int b, int c, int d) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Stores to the first pixel of each window.
DEVICE void store_windows(const TensorMap& map, unsigned from, int channel, int w, int h, int n) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(from), "r"(channel), "r"(w), "r"(h), "r"(n)
      : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's stores have not yet read their shared memory.
template <int kPending>
DEVICE void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Stores four 8 x 8 matrices of 2-byte elements, in the pairs in which mma holds its sums, to lines of 16 bytes. Lane 8
// i + l provides the address of line l of matrix i, or of its column l if transposed.
template <bool kTransposed>
DEVICE void store_matrices(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d) {
  if constexpr (kTransposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}
// Stores two matrices.
DEVICE void store_matrices(unsigned to, unsigned a, unsigned b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}

// A barrier for this many of the block's threads, in whole warps. id: 1 and up.
DEVICE void group_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

}  // namespace tma
#endif

}  // namespace reformer
