// Stacks to run functions on, a few hundred at a time, in turns.
#pragma once

#include <cstddef>

#if defined(__x86_64__) && !defined(REFORMER_EMULATOR_UCONTEXT)
#define REFORMER_OWN_SWITCH 1  // some 20 times as fast: ucontext asks the system for the signal mask
#else
#include <ucontext.h>
#endif

namespace reformer::emulator {

// A place where execution can be left and resumed. AddressSanitizer is told of each change of stacks.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next resume() calls `entry`, which must end by leave(true). What ran here before is forgotten.
  void start(void (*entry)());

  // Called outside of fibers; returns when the fiber leaves.
  void resume();

  // Called inside, by the fiber itself.
  void leave(bool for_good = false);

 private:
  static void enter();

  unsigned char* memory_;
  void (*entry_)() = nullptr;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
#if defined(REFORMER_OWN_SWITCH)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace reformer::emulator
