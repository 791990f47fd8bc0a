// Calls of PyTorch's operators, made by the library for the installed torch (csrc/aten/operator_call.h): torch's stable
// ABI supports neither all argument types nor the errors of called operators.
#pragma once

#include <cstdint>
#include <memory>

// hold: from the number of a call, the handle that the other functions take; null if there is no such call. run:
// returns null, or an error message that is valid until the thread's next call.
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
  // number: the call's number in that library. Throws std::invalid_argument if there is no such call.
  static OperatorStep of(int64_t number);

  const char* name() const;
  // inputs: handles of torch's C API, still owned by the caller. results: receives new handles. Throws
  // std::runtime_error with the operator's message.
  void run(void* const* inputs, void** results) const;

 private:
  std::shared_ptr<void> call_;
};

}  // namespace reformer
