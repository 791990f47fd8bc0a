// Sequences of operators run as one: everything that autograd's rules or a compiled graph do in a forward or a backward
// is one call from Python. Calling each operator separately would take longer than most kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "operator_calls.h"

namespace reformer {

struct InternedProgram;

// A convolution followed by a program. Inputs: input, weight, the program's inputs. Results: the program's outputs.
struct Conv2dStep {
  int64_t geometry;  // packed (interned.h)
  std::shared_ptr<const InternedProgram> program;
};

// A program. Inputs: acc, the program's inputs. Results: its outputs, of which the last ones are written to existing
// tensors.
struct StitchStep {
  std::shared_ptr<const InternedProgram> program;
};

// Gradients of a convolution. Inputs: the result's gradient, input, weight. wanted: a sum of 1 for the input's gradient
// and 2 for the weight's.
struct Conv2dGradsStep {
  int64_t geometry, wanted;
};

// Splits a tensor along its first dimension into its elements.
struct PartsStep {};

// A view of a tensor's memory with other sizes and strides, beginning `offset` elements after the tensor's first.
struct ViewStep {
  std::vector<int64_t> sizes, strides;
  int64_t offset;
  int64_t end;  // one past the last element that it reaches, counted from the tensor's first; equal to offset if the
                // view is empty
};

// Tensors are numbered: the plan's inputs first, then the results of the steps in order.
struct PlanStep {
  std::variant<Conv2dStep, StitchStep, Conv2dGradsStep, PartsStep, ViewStep, OperatorStep> what;
  std::vector<int32_t> inputs;
  std::vector<int32_t> into;   // destinations of a stitched program's last outputs
  std::vector<int32_t> frees;  // tensors that are not used after this step
  int32_t results;             // number of results
  std::string title;           // that of the compiler's report; empty outside of compiled graphs

  const char* name() const;  // the operator's, for messages
  // Label for the profiler: the title, or the program's operations, such as "reformer::stitch: mul, add, relu". Empty
  // for PyTorch's own operators, which the profiler already names, and for steps that compute nothing.
  std::string label() const;
};

struct Plan {
  int32_t inputs;
  int32_t tensors;  // number of all tensors, inputs and results
  std::vector<PlanStep> steps;
  std::vector<int32_t> outputs;
  int32_t reducing;  // number of stitched programs that reduce columns, planes or everything

  // Decodes a plan: the number of inputs; the number of outputs, and each; then each step: its kind, which is its index
  // in PlanStep::what; the length of its arguments, and these; the number of inputs, and each; likewise the tensors
  // that it writes to, those that it frees, and the bytes of its title. Arguments by kind:
  //   conv2d        a packed geometry, the program's code
  //   stitch        the program's code
  //   conv2d_grads  a packed geometry, `wanted`
  //   parts         the number of parts
  //   view          the offset, the number of dimensions, the sizes, the strides
  //   aten          the call's number (operator_calls.h), its numbers of inputs and of results
  // Throws std::invalid_argument if the code is malformed.
  static Plan decode(const int64_t* code, int64_t size);
};

}  // namespace reformer
