// Operators that follow one another, run as one: what autograd's rules or a compiler do in a forward or a backward is
// one call from Python so. A call of each takes longer than most kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "operator_calls.h"

namespace reformer {

struct InternedProgram;

// A convolution of input, weight and a program's inputs: the program's outputs.
struct Conv2dStep {
  int64_t geometry;  // packed (interned.h)
  std::shared_ptr<const InternedProgram> program;
};

// A program of acc and its inputs: its outputs, the last of which are written to tensors that are there.
struct StitchStep {
  std::shared_ptr<const InternedProgram> program;
};

// From a result's gradient, input and weight: the operands' gradients that are wanted, of the input 1, the weight 2.
struct Conv2dGradsStep {
  int64_t geometry, wanted;
};

// A tensor's parts along its first dimension.
struct PartsStep {};

// A tensor's memory, read with other sizes and strides from so many elements after its first on.
struct ViewStep {
  std::vector<int64_t> sizes, strides;
  int64_t offset;
  int64_t end;  // behind the last element that it reaches, counted from the tensor's first; or no more than offset
};

// Tensors have numbers: those that are given, then what the steps make, in order.
struct PlanStep {
  std::variant<Conv2dStep, StitchStep, Conv2dGradsStep, PartsStep, ViewStep, OperatorStep> what;
  std::vector<int32_t> inputs;
  std::vector<int32_t> into;   // what a stitched program's last outputs are written to
  std::vector<int32_t> frees;  // what nobody needs after it
  int32_t results;             // how many it makes

  const char* name() const;  // the operator's, for messages
  // For the profiler: a fused kernel by what it computes, such as "reformer::stitch: mul, add, relu". Empty for what
  // has a name there, PyTorch's own operators, and for what computes nothing.
  std::string label() const;
};

struct Plan {
  int32_t inputs;
  int32_t tensors;  // that are given or made
  std::vector<PlanStep> steps;
  std::vector<int32_t> outputs;
  int32_t reducing;  // stitched programs that reduce columns, planes or all

  // code: how many tensors are given; the number of outputs, and each; then each step: its kind, which is its place in
  // PlanStep::what; the length of what follows, and that; how many inputs, and each; the same of what it writes to, and
  // of what it frees. What follows a kind:
  //   conv2d        a packed geometry, the program's code
  //   stitch        the program's code
  //   conv2d_grads  a packed geometry, what is wanted
  //   parts         how many
  //   view          the offset, the number of dimensions, the sizes, the strides
  //   aten          the call's number (operator_calls.h), how many inputs it takes, and how many results it makes
  // Throws std::invalid_argument.
  static Plan decode(const int64_t* code, int64_t size);
};

}  // namespace reformer
