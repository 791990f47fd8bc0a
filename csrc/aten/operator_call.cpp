#include "operator_call.h"

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/inductor/aoti_torch/utils.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <stdexcept>
#include <utility>

#include "numbered.h"

namespace reformer {
namespace {

namespace py = pybind11;
using at::Tensor;
using Held = std::shared_ptr<OperatorCall>;

const Tensor& tensor_of(void* handle) {
  return *torch::aot_inductor::tensor_handle_to_tensor_pointer(static_cast<AtenTensorHandle>(handle));
}

// All calls that are alive.
Numbered<std::weak_ptr<OperatorCall>>& calls() {
  static auto& all = *new Numbered<std::weak_ptr<OperatorCall>>;  // torch's threads may outlive static objects
  return all;
}

// Fake tensors, from which plans are made, are sometimes wrong about strides.
void take_layout(Tensor& tensor, const OperatorCall::SizesAndStrides& layout) {
  const auto& [sizes, strides] = layout;
  if (!tensor.defined()) return;
  if (tensor.sizes() != at::IntArrayRef(sizes))
    throw std::runtime_error("its result has another size than the plan says");
  const auto same = [&](size_t d) { return sizes[d] == 1 || tensor.stride(int64_t(d)) == strides[d]; };
  bool all = true;
  for (size_t d = 0; d < sizes.size(); ++d) all = all && same(d);
  if (all || tensor.numel() == 0) return;
  Tensor copy = at::empty_strided(sizes, strides, tensor.options());
  tensor = copy.copy_(tensor);
}

thread_local std::exception_ptr last_exception;
thread_local std::string last_words;

}  // namespace

OperatorCall::OperatorCall(const std::string& name, const std::string& overload, const py::list& values,
                           const std::vector<int64_t>& lengths, std::vector<SizesAndStrides> layouts)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())),
      name_(name),
      layouts_(std::move(layouts)) {
  for (size_t i = 0; i < op_.schema().arguments().size(); ++i) read(i, values[i]);
  size_t next = 0;
  for (const c10::Argument& result : op_.schema().returns())
    results_.push_back(result.type()->kind() == c10::TypeKind::ListType     ? lengths.at(next++)
                       : result.type()->kind() == c10::TypeKind::TensorType ? kTensor
                                                                            : kNumber);
}

Held OperatorCall::make(const std::string& name, const std::string& overload, const py::list& values,
                        const std::vector<int64_t>& lengths, std::vector<SizesAndStrides> layouts) {
  const Held call(new OperatorCall(name, overload, values, lengths, std::move(layouts)));
  call->number_ = calls().add(call);
  return call;
}

OperatorCall::~OperatorCall() { calls().take(number_); }

void OperatorCall::read(size_t argument, const py::handle& value) {
  const c10::Argument& wanted = op_.schema().arguments()[argument];
  c10::TypePtr type = wanted.real_type();
  arguments_.emplace_back();
  if (type->kind() == c10::TypeKind::OptionalType) {
    if (value.is_none()) return;
    type = type->castRaw<c10::OptionalType>()->getElementType();
  }
  if (type->kind() == c10::TypeKind::TensorType && value.is_none()) {
    arguments_.back() = Tensor();
    return;
  }
  if (type->kind() == c10::TypeKind::TensorType) {
    places_.push_back({argument, Place::tensor, {true}});
    return;
  }
  if (type->kind() == c10::TypeKind::ListType) {
    c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
    const bool optional = element->kind() == c10::TypeKind::OptionalType;
    if (optional) element = element->castRaw<c10::OptionalType>()->getElementType();
    if (element->kind() == c10::TypeKind::TensorType) {
      Place place{argument, optional ? Place::optional_tensors : Place::tensors, {}};
      for (const py::handle each : value) place.there.push_back(!each.is_none());
      places_.push_back(std::move(place));
      return;
    }
  }
  try {
    arguments_.back() = torch::jit::toIValue(value, wanted.type(), wanted.N());
  } catch (const std::exception&) {
    throw py::type_error(name_ + ": " + wanted.name() + " must be of the type " + wanted.type()->str() + ", got " +
                         std::string(py::str(py::repr(value))));
  }
}

void OperatorCall::run(void* const* inputs, void** results) const {
  c10::Stack stack = arguments_;
  for (const Place& place : places_) {
    c10::IValue& value = stack[place.argument];
    switch (place.kind) {
      case Place::tensor: value = tensor_of(*inputs++); break;
      case Place::tensors: {
        c10::List<Tensor> list;
        list.reserve(place.there.size());
        for (size_t i = 0; i < place.there.size(); ++i) list.push_back(tensor_of(*inputs++));
        value = std::move(list);
        break;
      }
      case Place::optional_tensors: {
        c10::List<std::optional<Tensor>> list;
        list.reserve(place.there.size());
        for (const bool there : place.there) list.push_back(there ? std::optional(tensor_of(*inputs++)) : std::nullopt);
        value = std::move(list);
        break;
      }
    }
  }
  op_.callBoxed(stack);
  std::vector<Tensor> made;
  for (size_t i = 0; i < results_.size(); ++i) {
    if (results_[i] == kNumber) continue;
    if (results_[i] == kTensor) {
      made.push_back(std::move(stack[i]).toTensor());
      continue;
    }
    const std::vector<Tensor> list = std::move(stack[i]).toTensorVector();
    if (int64_t(list.size()) != results_[i])
      throw std::runtime_error("it gave a list of " + std::to_string(list.size()) + " tensors; the plan says " +
                               std::to_string(results_[i]));
    made.insert(made.end(), list.begin(), list.end());
  }
  for (size_t i = 0; i < layouts_.size(); ++i) take_layout(made[i], layouts_[i]);
  for (Tensor& tensor : made) *results++ = torch::aot_inductor::new_tensor_handle(std::move(tensor));
}

ReformerOperatorCalls OperatorCall::functions() {
  return {
      [](int64_t number) -> void* {
        const auto found = calls().at(number);
        Held call = found ? found->lock() : nullptr;
        return call ? new Held(std::move(call)) : nullptr;
      },
      [](void* call) { delete static_cast<Held*>(call); },
      [](void* call) { return (*static_cast<Held*>(call))->name_.c_str(); },
      [](void* call, void* const* inputs, void** results) -> const char* {
        try {
          (*static_cast<Held*>(call))->run(inputs, results);
          return nullptr;
        } catch (const c10::Error& error) {
          last_exception = std::current_exception();
          last_words = error.what_without_backtrace();
        } catch (const std::exception& error) {
          last_exception = std::current_exception();
          last_words = error.what();
        }
        return last_words.c_str();
      },
  };
}

std::exception_ptr OperatorCall::take_exception() { return std::exchange(last_exception, nullptr); }

}  // namespace reformer
