// Backward nodes under PyTorch's compiled autograd, which traces a whole backward as one graph of Python's.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace reformer {

// Bit i is set if the node's output i is wanted.
inline uint64_t wanted_outputs(const torch::autograd::Node& node) {
  uint64_t wanted = 0;
  for (size_t i = 0; i < node.num_outputs(); ++i)
    if (node.task_should_compute_output(i)) wanted |= uint64_t{1} << i;
  return wanted;
}

// Puts compute(gradients, tensors) into the graph and returns the proxies of its results, one for each of the node's
// outputs. compute() has to be a function of these arguments alone, by operators of PyTorch's dispatcher: it is called
// while the graph is traced again. All of the tensors are defined; a gradient may not be.
template <class Compute>
torch::autograd::variable_list traced(const torch::autograd::Node& node, PyObject* compiler,
                                      const torch::autograd::variable_list& gradients,
                                      torch::autograd::variable_list tensors, Compute compute) {
  namespace compiled = torch::dynamo::autograd;
  using torch::autograd::variable_list;
  const auto call = [compute = std::move(compute)](const variable_list& given, const std::vector<at::IValue>& packed) {
    return compute(given, packed[0].toTensorVector());
  };
  auto metadata = compiled::get_input_metadata(node.next_edges());
  const auto& python = compiled::getPyCompilerInterface();
  const auto name = python->bind_function(compiler, node.name(), call, {at::ListType::ofTensors()},
                                          /*is_custom_function=*/true, /*is_traceable=*/true);
  const at::IValue packed = compiled::IValuePacker<decltype(metadata)>::pack(metadata);
  return python->call_function(compiler, "apply_functional", name, gradients, {at::IValue(std::move(tensors))}, packed);
}

}  // namespace reformer
