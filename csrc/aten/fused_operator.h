// Fused operators as autograd sees them, on the eager fast path: the forward is one plan, and so is the backward.
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

// A plan (torch_reformer/runtime/plan.py), its number, and how many outputs it has.
struct OwnedPlan {
  explicit OwnedPlan(pybind11::object plan);

  pybind11::object owner;
  int64_t number;
  size_t outputs;
};

// A backward for some of the results' gradients, to some of the tensors' gradients.
struct BackwardPlan {
  OwnedPlan plan;
  std::vector<int32_t> inputs;  // the given gradients, in order, then what was saved: places among all of both
  std::vector<int32_t> places;  // of the tensors whose gradients its outputs are
};

// One operator for tensors whose gradients are wanted or not, as given once: its forward, what that saves, and its
// backwards, which Python writes when they are first needed.
class Differentiated {
 public:
  // saved: places among the tensors, or behind them among the forward's outputs. The first `results` of these are the
  // operator's own, each `constant` or not. `originals`: the
  // tensors of which copies were saved, for derive() to link both; they may have changed in place meanwhile.
  // forms: of the tensors, then of the forward's outputs, where the plans compute a matrix product as a convolution;
  // else empty. What is given, saved and returned is the product's.
  // write_backward(given, wanted): a BackwardPlan's parts for results and tensors of these numbers, or None.
  // derive(grads, saved, originals, wanted, sizes, result_sizes): the gradients by differentiable operators; sizes of
  // tensors whose gradients are wanted, and of results that are not constant.
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

  // Null if there is none, so that derive() has to be called. Bit i of each: result i, tensor i.
  const BackwardPlan* backward(uint64_t given, uint64_t wanted);

  const OwnedPlan forward;
  const size_t results;
  const std::vector<bool> constant;
  const std::vector<int32_t> saved, originals;
  const std::vector<Form> forms;
  const pybind11::function derive;

 private:
  const pybind11::function write_backward_;
  std::mutex mutex_;
  std::map<std::pair<uint64_t, uint64_t>, std::unique_ptr<BackwardPlan>> backwards_;
};

class FusedOperator {
 public:
  // write(wanted): a Differentiated for tensors of which those of these numbers want gradients, or None if Python's
  // rules take such calls. returned: how many results its callers get.
  FusedOperator(pybind11::function write, size_t returned) : write_(std::move(write)), returned_(returned) {}

  // The results, or nothing where PyTorch's dispatcher has to see the call.
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
