// Kernels by Hopper's instructions with a mistake each, which the emulator has to find; and one that is right.
#include "cluster.h"
#include "mma.h"
#include "tma.h"

namespace reformer {

constexpr int kTmaBugThreads = 128, kTmaBugBytes = 8192;  // of a box: 64 lines of 64 elements

struct TmaBugArgs {
  TensorMap from, to;
  int element, line, to_element, to_line;
  int w, h, n, offset_w, offset_h;  // of windows
};

// Shared memory: two boxes and a barrier.
struct BugMemory {
  unsigned char* memory;
  DEVICE unsigned box(int i) const { return tma::shared_address(memory + i * kTmaBugBytes); }
  DEVICE unsigned barrier() const { return box(2); }

  DEVICE void init_barrier(int arrivals) const {
    if (thread_id() == 0) {
      tma::init_barrier(barrier(), arrivals);
      tma::publish_barriers();
    }
    reformer::barrier();
  }
  DEVICE void load(const TmaBugArgs& args, int line) const {
    if (thread_id()) return;
    tma::arrive_expecting(barrier(), kTmaBugBytes);
    tma::load(args.from, box(0), barrier(), args.element, line);
  }
  DEVICE void load_windows(const TmaBugArgs& args, int bytes) const {
    if (thread_id()) return;
    tma::arrive_expecting(barrier(), bytes);
    tma::load_windows(args.from, box(0), barrier(), args.element, args.w, args.h, args.n, args.offset_w, args.offset_h);
  }
};

KERNEL(kTmaBugThreads) no_tma_bug(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(1);
  memory.load(args, args.line);
  tma::wait(memory.barrier(), 0);
  if (thread_id()) return;
  tma::store(args.to, memory.box(0), args.to_element, args.to_line);
  tma::wait_for_reads<0>();
}

// From windows to a matrix.
KERNEL(kTmaBugThreads) no_bug_of_windows(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(1);
  memory.load_windows(args, kTmaBugBytes);
  tma::wait(memory.barrier(), 0);
  if (thread_id()) return;
  tma::store(args.to, memory.box(0), args.to_element, args.to_line);
  tma::wait_for_reads<0>();
}

// And back.
KERNEL(kTmaBugThreads) no_bug_of_stored_windows(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(1);
  memory.load(args, args.line);
  tma::wait(memory.barrier(), 0);
  if (thread_id()) return;
  tma::store_windows(args.to, memory.box(0), args.to_element, args.w, args.h, args.n);
  tma::wait_for_reads<0>();
}

// As if only half of the windows' pixels lay in the tensor.
KERNEL(kTmaBugThreads) too_few_bytes_of_windows(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(1);
  memory.load_windows(args, kTmaBugBytes / 2);
  tma::wait(memory.barrier(), 0);
}

// Each block of a pair loads a box for both, and stores the other one's.
KERNEL(kTmaBugThreads) no_bug_of_pairs(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  const int own = block_z(), other = 1 - own;
  memory.init_barrier(1);
  cluster_meet();
  if (thread_id() == 0) {
    tma::arrive_expecting(memory.barrier(), 2 * kTmaBugBytes);
    tma::load_for_both(args.from, memory.box(own), memory.barrier(), 0, own * 64);
  }
  tma::wait(memory.barrier(), 0);
  if (thread_id() == 0) {
    tma::store(args.to, memory.box(other), 0, other * 64);
    tma::wait_for_reads<0>();
  }
  cluster_meet();
}

KERNEL(kTmaBugThreads) pair_that_does_not_meet_again(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(1);
  cluster_meet();
  if (block_z() || thread_id()) return;
  tma::arrive_expecting(memory.barrier(), kTmaBugBytes);
  tma::load_for_both(args.from, memory.box(0), memory.barrier(), 0, 0);
  tma::wait(memory.barrier(), 0);
}

KERNEL(kTmaBugThreads) pair_of_which_one_meets(const __grid_constant__ TmaBugArgs) {
  if (block_z()) cluster_meet();
}

KERNEL(kTmaBugThreads) arrives_at_no_block(const __grid_constant__ TmaBugArgs) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(1);
  if (thread_id() == 0) tma::arrive_there(memory.barrier(), 2);
}

KERNEL(kTmaBugThreads) load_without_wait(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(1);
  memory.load(args, args.line);
  if (thread_id()) return;
  tma::store(args.to, memory.box(0), 0, 0);
  tma::wait_for_reads<0>();
  tma::wait(memory.barrier(), 0);
}

KERNEL(kTmaBugThreads) ends_before_the_load(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(1);
  memory.load(args, args.line);
}

KERNEL(kTmaBugThreads) store_without_wait(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  if (thread_id() == 0) tma::store(args.to, memory.box(0), 0, 0);
}

KERNEL(kTmaBugThreads) overwritten_store(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  if (thread_id()) return;
  shared[64] = 1;
  tma::store(args.to, memory.box(0), 0, 0);
  shared[64] = 2;
  tma::wait_for_reads<0>();
}

KERNEL(kTmaBugThreads) barrier_that_nobody_initialised(const __grid_constant__ TmaBugArgs) {
  DYNAMIC_SHARED(shared);
  tma::wait(BugMemory{shared}.barrier(), 0);
}

KERNEL(kTmaBugThreads) too_few_arrivals(const __grid_constant__ TmaBugArgs) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(5);
  if (lane_id() == 0) tma::arrive(memory.barrier());
  tma::wait(memory.barrier(), 0);
}

KERNEL(kTmaBugThreads) too_many_arrivals(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  memory.init_barrier(1);
  if (thread_id() % 64 == 0) tma::arrive_expecting(memory.barrier(), kTmaBugBytes);
}

KERNEL(kTmaBugThreads) group_without_a_warp(const __grid_constant__ TmaBugArgs) {
  if (warp_id()) tma::group_barrier(1, kTmaBugThreads);
}

KERNEL(kTmaBugThreads) crooked_box(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  if (thread_id() == 0) tma::store(args.to, memory.box(0) + 64, 0, 0);
}

KERNEL(kTmaBugThreads) past_the_end(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  if (thread_id() == 0) tma::store(args.to, memory.box(1) + 128, 0, 0);
}

// The product of a box and itself, into which the next one is copied before the product was waited for.
KERNEL(kTmaBugThreads) overwritten_operand(const __grid_constant__ TmaBugArgs args) {
  DYNAMIC_SHARED(shared);
  const BugMemory memory{shared};
  const OperandTile<bf16, 64, 64> tile{shared};
  memory.init_barrier(1);
  memory.load(args, 0);
  tma::wait(memory.barrier(), 0);
  GroupTile<bf16, 64> sums;
  sums.clear();
  sums.start(tile, 0, tile);
  memory.load(args, 1);
  tma::wait(memory.barrier(), 1);
  sums.finish();
}

}  // namespace reformer
