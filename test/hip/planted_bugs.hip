// Kernels with a mistake each, which the emulator has to find; and some that look alike and are right.
#include "async_copy.h"
#include "warp.h"

namespace reformer {

constexpr int kBugThreads = 128;

struct BugArgs {
  float* numbers;  // one a thread
};

KERNEL(kBugThreads) divergent_barrier(BugArgs) {
  if (thread_id() < 40) barrier();
}

KERNEL(kBugThreads) two_barriers(BugArgs) {
  if (thread_id() < 64)
    barrier();
  else
    barrier();
}

KERNEL(kBugThreads) divergent_shuffle(BugArgs args) {
  if (thread_id() & 1) args.numbers[thread_id()] = shuffle_xor(args.numbers[thread_id()], 1);
}

KERNEL(kBugThreads) shuffle_and_barrier(BugArgs args) {
  if (thread_id() < 10) barrier();
  args.numbers[thread_id()] = warp_sum(args.numbers[thread_id()]);
}

KERNEL(kBugThreads) shuffle_from_nowhere(BugArgs args) {
  args.numbers[thread_id()] = shuffle_from(args.numbers[thread_id()], thread_id());
}

// Rotates the numbers by one warp, twice; without the barrier, the second time may overtake the first.
template <bool kRight>
DEVICE void rotate_twice(const BugArgs& args) {
  SHARED float shared[kBugThreads];
  const int i = thread_id(), next = (i + kWarp) % kBugThreads;
  float number = args.numbers[i];
  for (int round = 0; round < 2; ++round) {
    shared[i] = number;
    barrier();
    number = shared[next];
    if (kRight) barrier();
  }
  args.numbers[i] = number;
}
KERNEL(kBugThreads) missing_barrier(BugArgs args) { rotate_twice<false>(args); }
KERNEL(kBugThreads) no_missing_barrier(BugArgs args) { rotate_twice<true>(args); }

KERNEL(kBugThreads) missing_wait(BugArgs args) {
  SHARED float shared[kBugThreads];
  async_copy<4>(shared + thread_id(), args.numbers + thread_id(), true);
  async_commit();
  barrier();
  args.numbers[thread_id()] = shared[thread_id()] + 1;
}

KERNEL(kBugThreads) crooked_copy(BugArgs args) {
  DYNAMIC_SHARED(shared);
  async_copy<8>(shared + thread_id() * 8 + 4, args.numbers, true);
}

KERNEL(kBugThreads) unwritten_shared(BugArgs args) {
  SHARED float shared[kBugThreads];
  DYNAMIC_SHARED(dynamic);
  if (thread_id() % 2) shared[thread_id()] = 1;
  args.numbers[thread_id()] = shared[thread_id()] + reinterpret_cast<float*>(dynamic)[thread_id()];
}

// For sanitizers.
KERNEL(kBugThreads) past_shared(BugArgs args) {
  SHARED float shared[kBugThreads];
  float* from = shared;
  from[thread_id() + 8] = 1;
  barrier();
  args.numbers[thread_id()] = from[thread_id()];
}

KERNEL(kBugThreads) past_dynamic_shared(BugArgs args) {
  DYNAMIC_SHARED(shared);
  args.numbers[thread_id()] = reinterpret_cast<float*>(shared)[thread_id() + 1];
}

KERNEL(kBugThreads) past_global(BugArgs args) { args.numbers[thread_id() + 1] = 1; }

KERNEL(kBugThreads) copy_past_global(BugArgs args) {
  SHARED Words<16> shared[kBugThreads];
  async_copy<16>(shared + thread_id(), args.numbers + (thread_id() + 1) / 4 * 4, true);
  async_commit();
  async_wait<0>();
}

KERNEL(kBugThreads) past_local(BugArgs args) {
  float local[4];
  for (int i = 0; i <= thread_id(); ++i) local[i] = args.numbers[i];
  args.numbers[thread_id()] = local[thread_id() & 3];
}

KERNEL(kBugThreads) crooked_load(BugArgs args) {
  const auto words = load<float, 4>(args.numbers + thread_id() % 4);
  args.numbers[thread_id()] = bits_to_float(word(words, 0));
}

KERNEL(kBugThreads) signed_overflow(BugArgs args) {
  const int large = 0x7fffff00 + int(args.numbers[0]);
  args.numbers[thread_id()] = static_cast<float>(large + thread_id() * 4);
}

}  // namespace reformer
