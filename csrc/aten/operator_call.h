// A call of any PyTorch operator as a step of a plan. Its arguments are checked against the schema only once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/operator_calls.h"

namespace reformer {

class OperatorCall {
 public:
  using SizesAndStrides = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

  // values: one for each argument in the schema's order; in place of a tensor True or None, whether it is given, and in
  // place of a list of tensors a list of these. lengths: of each list of tensors among the results. layouts: of each
  // returned tensor, which is copied if its layout differs; may be empty. Throws TypeError for a value of a wrong type.
  static std::shared_ptr<OperatorCall> make(const std::string& name, const std::string& overload,
                                            const pybind11::list& values, const std::vector<int64_t>& lengths,
                                            std::vector<SizesAndStrides> layouts);
  ~OperatorCall();

  // The number by which a plan's code refers to the call.
  int64_t number() const { return number_; }

  // The C functions for the executor of plans. They don't throw.
  static ReformerOperatorCalls functions();
  // The exception of this thread's last failed run, or null. Clears it.
  static std::exception_ptr take_exception();

 private:
  OperatorCall(const std::string& name, const std::string& overload, const pybind11::list& values,
               const std::vector<int64_t>& lengths, std::vector<SizesAndStrides> layouts);

  static constexpr int64_t kTensor = -1, kNumber = -2;

  // An argument that is an optional tensor, or a list of optional tensors.
  struct Place {
    size_t argument;
    enum { tensor, tensors, optional_tensors } kind;
    std::vector<bool> there;
  };

  void read(size_t argument, const pybind11::handle& value);
  void run(void* const* inputs, void** results) const;

  int64_t number_ = -1;
  const c10::OperatorHandle op_;
  const std::string name_;
  c10::Stack arguments_;  // with None in the places of tensors
  std::vector<Place> places_;
  std::vector<int64_t>
      results_;  // for each result: kTensor, the length of a list of tensors, or kNumber, which is dropped
  const std::vector<SizesAndStrides> layouts_;
};

}  // namespace reformer
