// Operators that follow one another, run as one. What autograd's rules do in a forward or a backward is one call from
// Python so: each takes longer than most kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace reformer {

struct InternedProgram;

// Tensors have numbers: those that are given, then what the steps make, in order.
struct PlanStep {
  enum class Kind : uint8_t {
    conv2d,        // of input, weight and a program's inputs: the program's outputs
    stitch,        // of acc and a program's inputs: the same
    conv2d_grads,  // of the result's gradient, input and weight: the operands' gradients that are wanted
    parts,         // of a tensor: those along its first dimension
  };
  Kind kind;
  std::vector<int32_t> inputs;
  std::vector<int32_t> into;                       // tensors that a program's last outputs are written to
  int32_t results;                                 // how many it makes
  std::shared_ptr<const InternedProgram> program;  // of conv2d and stitch
  int64_t geometry;                                // of conv2d and conv2d_grads, packed (interned.h)
  int64_t wanted;                                  // of conv2d_grads: as for that
};

struct Plan {
  int32_t inputs;
  std::vector<PlanStep> steps;
  std::vector<int32_t> outputs;

  // code: how many tensors are given; the number of outputs, and each; then each step: its kind; the length of a
  // program's code, and that (conv2d, stitch), what is wanted (conv2d_grads) or how many there are (parts); a packed
  // geometry or -1; how many inputs, and each; how many to write to, and each. Throws std::invalid_argument with a
  // sentence.
  static Plan decode(const int64_t* code, int64_t size);
};

}  // namespace reformer
