#include "operator_calls.h"

#include <stdexcept>
#include <string>

namespace reformer {
namespace {

ReformerOperatorCalls calls{};

}  // namespace

void set_operator_calls(const ReformerOperatorCalls& functions) { calls = functions; }

OperatorStep OperatorStep::of(int64_t number) {
  if (!calls.hold) throw std::invalid_argument("the library that calls PyTorch's operators is not there");
  void* const held = calls.hold(number);
  if (!held) throw std::invalid_argument("no call has the number " + std::to_string(number) + " (any more)");
  OperatorStep call;
  call.call_ = {held, calls.release};
  return call;
}

const char* OperatorStep::name() const { return calls.name(call_.get()); }

void OperatorStep::run(void* const* inputs, void** results) const {
  if (const char* error = calls.run(call_.get(), inputs, results)) throw std::runtime_error(error);
}

}  // namespace reformer
