// Calls of PyTorch's operators, which the library for the torch at hand makes (csrc/aten/operator_call.h): torch's
// stable ABI knows neither all types of arguments nor the errors of what it calls.
#pragma once

#include <cstdint>
#include <memory>

// hold: what the other functions take, from the number of a call; null if there is none. run: null, or a message that
// is good until the thread's next call.
struct ReformerOperatorCalls {
  void* (*hold)(int64_t number);
  void (*release)(void* call);
  const char* (*name)(void* call);
  const char* (*run)(void* call, void* const* inputs, void** results);
};

namespace reformer {

void set_operator_calls(const ReformerOperatorCalls& calls);

class OperatorStep {
 public:
  // number: the call's in that library. Throws std::invalid_argument.
  static OperatorStep of(int64_t number);

  const char* name() const;
  // inputs: handles of torch's C API, which stay the caller's. results: new ones. Throws std::runtime_error with the
  // operator's message.
  void run(void* const* inputs, void** results) const;

 private:
  std::shared_ptr<void> call_;
};

}  // namespace reformer
