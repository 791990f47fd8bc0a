// A call of any of PyTorch's operators, as a step of a plan: its arguments are looked at once, by its schema.
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

  // values: of all arguments, in the schema's order; in the places of tensors whether they are there: True, or a list
  // of True and None. lengths: of each list of tensors among the results. layouts: of each tensor that it gives, which
  // is copied where it has another; or none. Throws TypeError for a value of another type.
  static std::shared_ptr<OperatorCall> make(const std::string& name, const std::string& overload,
                                            const pybind11::list& values, const std::vector<int64_t>& lengths,
                                            std::vector<SizesAndStrides> layouts);
  ~OperatorCall();

  // By which a plan's code names it.
  int64_t number() const { return number_; }

  // For the executor of plans; they throw nothing.
  static ReformerOperatorCalls functions();
  // The exception of this thread's last run that failed, or null; from then on null.
  static std::exception_ptr take_exception();

 private:
  OperatorCall(const std::string& name, const std::string& overload, const pybind11::list& values,
               const std::vector<int64_t>& lengths, std::vector<SizesAndStrides> layouts);

  static constexpr int64_t kTensor = -1, kNumber = -2;

  // An argument that is a tensor, or a list of such, each there or not.
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
  c10::Stack arguments_;  // with nothing in the places of tensors
  std::vector<Place> places_;
  std::vector<int64_t> results_;  // of each: kTensor, the length of a list of tensors, or kNumber, which is left out
  const std::vector<SizesAndStrides> layouts_;
};

}  // namespace reformer
