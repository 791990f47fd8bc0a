#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define __sanitizer_start_switch_fiber(save, bottom, size)
#define __sanitizer_finish_switch_fiber(fake, bottom, size)
#define __asan_unpoison_memory_region(start, size)
#endif

#if defined(REFORMER_OWN_SWITCH)
// Leaves the stack of whom it is called by, storing the stack pointer at `save`, and returns on the other one. The
// registers that a function must preserve in the System V ABI wait on the stacks.
extern "C" void reformer_switch_stacks(void** save, void* load);
asm(R"(
.pushsection .text
.type reformer_switch_stacks, @function
reformer_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size reformer_switch_stacks, .-reformer_switch_stacks
.popsection
)");
#endif

namespace reformer::emulator {
namespace {

constexpr size_t kStackBytes = 512 << 10;  // of which the system gives only the pages that are touched

Fiber* running = nullptr;

// The stack that fibers are resumed from.
const void* caller_stack = nullptr;
size_t caller_stack_bytes = 0;
void* caller_fake_stack = nullptr;
#if defined(REFORMER_OWN_SWITCH)
void* caller_stack_pointer = nullptr;
#else
ucontext_t caller_context;
#endif

}  // namespace

Fiber::Fiber() {
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  void* memory =
      mmap(nullptr, page + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, page, PROT_NONE);  // a stack that grows too long ends here
  memory_ = static_cast<unsigned char*>(memory) + page;
}

Fiber::~Fiber() {
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  munmap(memory_ - page, page + kStackBytes);
}

void Fiber::start(void (*entry)()) {
  __asan_unpoison_memory_region(memory_, kStackBytes);
  entry_ = entry;
  fake_stack_ = nullptr;
#if defined(REFORMER_OWN_SWITCH)
  // As if `enter` had been about to run when it was left: its address to return to, and six registers.
  void** top = reinterpret_cast<void**>(memory_ + kStackBytes - 64);
  *--top = nullptr;  // where `enter` would return to: the end of the chain for debuggers
  *--top = reinterpret_cast<void*>(&Fiber::enter);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = memory_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::enter, 0);
#endif
}

void Fiber::enter() {
  __sanitizer_finish_switch_fiber(nullptr, &caller_stack, &caller_stack_bytes);
  running->entry_();
  abort();
}

void Fiber::resume() {
  running = this;
  __sanitizer_start_switch_fiber(&caller_fake_stack, memory_, kStackBytes);
#if defined(REFORMER_OWN_SWITCH)
  reformer_switch_stacks(&caller_stack_pointer, stack_pointer_);
#else
  swapcontext(&caller_context, &context_);
#endif
  __sanitizer_finish_switch_fiber(caller_fake_stack, nullptr, nullptr);
  running = nullptr;
}

void Fiber::leave([[maybe_unused]] bool for_good) {
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, caller_stack, caller_stack_bytes);
#if defined(REFORMER_OWN_SWITCH)
  reformer_switch_stacks(&stack_pointer_, caller_stack_pointer);
#else
  swapcontext(&context_, &caller_context);
#endif
  __sanitizer_finish_switch_fiber(fake_stack_, &caller_stack, &caller_stack_bytes);
}

}  // namespace reformer::emulator
