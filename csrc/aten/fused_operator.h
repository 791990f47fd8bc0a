// Fused operators as autograd nodes on the eager fast path: one plan for the forward, one for the backward.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "rows.h"

namespace reformer {

// A plan (torch_reformer/runtime/plan.py), its number and how many outputs it has.
struct OwnedPlan {
  explicit OwnedPlan(pybind11::object plan);

  pybind11::object owner;
  int64_t number;
  size_t outputs;
};

// A backward plan for a given set of result gradients and a given set of tensors that need gradients.
struct BackwardPlan {
  OwnedPlan plan;
  std::vector<int32_t> inputs;  // the given gradients in order, followed by the saved tensors: indices into that list
  std::vector<int32_t> places;  // indices of the tensors whose gradients the outputs are
};

// An operator specialised to which of its tensors need gradients: its forward, the tensors that it saves, and its
// backwards, which Python writes when they are first needed.
class Differentiated {
 public:
  // saved: indices among the tensors followed by the forward's outputs. The first `results` outputs are the operator's
  // own; `constant` has an element for each.
  // originals: the tensors whose copies were saved. derive() links both; the originals may have changed in place since.
  // forms: of the tensors followed by the forward's outputs, if the plans compute a matrix product as a convolution;
  // else empty. Given, saved and returned tensors have the shapes of the matrix product.
  // write_backward(given, wanted): the parts of a BackwardPlan for these results and tensors (bit masks), or None.
  // derive(grads, saved, originals, wanted, sizes, result_sizes): the gradients by differentiable operators. sizes are
  // those of the tensors that need gradients, result_sizes those of the results that are not constant.
  Differentiated(OwnedPlan forward, size_t results, std::vector<bool> constant, std::vector<int32_t> saved,
                 std::vector<int32_t> originals, std::vector<Form> forms, pybind11::function write_backward,
                 pybind11::function derive)
      : forward(std::move(forward)),
        results(results),
        constant(std::move(constant)),
        saved(std::move(saved)),
        originals(std::move(originals)),
        forms(std::move(forms)),
        derive(std::move(derive)),
        write_backward_(std::move(write_backward)) {}

  // Null if there is none; then derive() has to be called. Bit i of `given` is result i, bit i of `wanted` tensor i.
  const BackwardPlan* backward(uint64_t given, uint64_t wanted);

  const int64_t number = next_number();  // no other one has it, then or later
  const OwnedPlan forward;
  const size_t results;
  const std::vector<bool> constant;
  const std::vector<int32_t> saved, originals;
  const std::vector<Form> forms;
  const pybind11::function derive;

 private:
  static int64_t next_number();

  const pybind11::function write_backward_;
  std::mutex mutex_;
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<BackwardPlan>> backwards_;
};

class FusedOperator {
 public:
  // write(wanted): a Differentiated for the case that the tensors in the bit mask need gradients, or None if Python's
  // rules handle such calls. returned: number of results that callers get.
  FusedOperator(pybind11::function write, size_t returned) : write_(std::move(write)), returned_(returned) {}

  // The results, or nullopt if PyTorch's dispatcher has to see the call.
  std::optional<std::vector<at::Tensor>> operator()(std::vector<at::Tensor> tensors);

 private:
  std::shared_ptr<Differentiated> of(uint64_t wanted);
  std::vector<at::Tensor> returned(std::vector<at::Tensor> results) const;

  const pybind11::function write_;
  const size_t returned_;
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Differentiated>> differentiated_;
};

}  // namespace reformer
