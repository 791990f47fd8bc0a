#include "aten_step.h"

#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <stdexcept>
#include <string>

#include "checks.h"

namespace reformer {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

// A list that the callee frees, as it does every argument: so none is made once for all calls.
class List {
 public:
  explicit List(size_t size) { TORCH_ERROR_CODE_CHECK(torch_new_list_reserve_size(size, &handle_)); }
  void push(StableIValue element) { TORCH_ERROR_CODE_CHECK(torch_list_push_back(handle_, element)); }
  StableIValue take() const { return StableIValue(reinterpret_cast<uintptr_t>(handle_)); }

 private:
  StableListHandle handle_;
};

StableIValue behind_pointer(StableIValue value) {
  return StableIValue(reinterpret_cast<uintptr_t>(new StableIValue(value)));
}

// input(): the step's next one.
template <class Input>
StableIValue value_of(const AtenArgument& argument, const Input& input) {
  using Kind = AtenArgument::Kind;
  switch (argument.kind) {
    case Kind::word: return StableIValue(argument.word);
    case Kind::tensor: return from(input());
    case Kind::words: {
      List list(argument.words.size());
      for (int64_t word : argument.words) list.push(StableIValue(word));
      return list.take();
    }
    case Kind::tensors: {
      List list(size_t(argument.word));
      for (int64_t i = 0; i < argument.word; ++i) list.push(from(input()));
      return list.take();
    }
    default: {
      List list(argument.words.size());
      for (int64_t is_there : argument.words) list.push(is_there ? behind_pointer(from(input())) : 0);
      return list.take();
    }
  }
}

// torch 2.13 has a function for the message; before that torch only logs what is not this library's.
std::string message_of_torch() {
  using Message = const char* (*)();
  static const auto message =
      reinterpret_cast<Message>(dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace"));
  if (message) return message();
  return last_failure().empty() ? "it failed, and the lines that PyTorch logged say why" : last_failure();
}

}  // namespace

void call_aten(const AtenCall& call, const std::vector<int32_t>& inputs, std::vector<Tensor>& there,
               StableIValue* stack) {
  const int32_t* next = inputs.data();
  const auto input = [&]() -> const Tensor& { return there[size_t(*next++)]; };
  StableIValue* top = stack;
  for (const AtenArgument& argument : call.arguments) {
    const StableIValue value = value_of(argument, input);
    *top++ = argument.is_optional ? behind_pointer(value) : value;
  }
  last_failure().clear();
  // The arguments go by the schema of the torch that runs, not of the one that this was compiled with.
  if (torch_call_dispatcher(call.name.c_str(), call.overload.c_str(), stack, aoti_torch_abi_version()))
    throw std::runtime_error(message_of_torch());
  const int32_t* wrong = nullptr;  // all that it gives is owned before anything is thrown
  size_t got = 0;
  for (const int32_t& length : call.results) {
    const StableIValue value = *stack++;
    if (length == AtenCall::kTensor) {
      there.push_back(to<Tensor>(value));
      continue;
    }
    const auto list = to<std::vector<Tensor>>(value);
    if (list.size() != size_t(length)) wrong = &length, got = list.size();
    there.insert(there.end(), list.begin(), list.end());
  }
  if (wrong)
    throw std::runtime_error("it gave a list of " + std::to_string(got) + " tensors; the plan says " +
                             std::to_string(*wrong));
}

Tensor view_of(const Tensor& tensor, const ViewStep& view) {
  int64_t elements;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_numel(tensor.get(), &elements));
  const int64_t first = tensor.storage_offset();
  if (first + view.offset < 0 || first + view.end > elements)
    throw std::runtime_error("the view reaches beyond the tensor's memory");
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(tensor.get(), int64_t(view.sizes.size()), view.sizes.data(),
                                                        view.strides.data(), view.offset, &handle));
  return Tensor(handle);
}

}  // namespace reformer
