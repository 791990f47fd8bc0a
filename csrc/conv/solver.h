// The contract between the choice and the algorithms. No torch, no GPU's headers: an algorithm sees plain pointers.
#pragma once

#include <cstdint>

#include "device.h"
#include "problem.h"
#include "program/program.h"

namespace reformer {

// The tensors of <conv(x, w), y>, dense in the problem's layout (w: KCRS or KRSC). The direction says which of them is
// written: y in forward, x in input_grad, w in weight_grad; the other two are read only. No two of them overlap.
struct ConvBuffers {
  void* x;
  void* w;
  void* y;
  const void* bias;  // k elements, or null; of the problem's data type
  void* workspace;   // as many bytes as the solver asked for, 64-byte aligned
  gpu::Queue queue;  // on a GPU: where the pointers belong, each a multiple of 16 bytes, and work goes
};

// One execution, given to a solver by whoever owns the tensors.
class ConvCall {
 public:
  virtual ~ConvCall() = default;
  // Allocates the result and the workspace. Call once.
  virtual ConvBuffers buffers(int64_t workspace_bytes) = 0;
  // Lets PyTorch's own convolution compute the result, with the operands converted to this layout first.
  virtual void aten(Layout via) = 0;
};

class Solver {
 public:
  virtual ~Solver() = default;

  // A stable identifier: lower case, digits and underscores. Timings and weights files refer to it.
  virtual const char* name() const = 0;

  virtual bool runs_on(DeviceKind kind) const { return kind == DeviceKind::cpu; }

  // Null if this solver can compute the problem on this device, which is of a kind that it runs on; else a sentence
  // that says why not.
  virtual const char* refusal(const ConvProblem& problem, const Device& device) const = 0;

  // Expected time in microseconds, from a cost model; only asked where refusal() is null.
  virtual double estimate_us(const ConvProblem& problem, const Device& device) const = 0;

  // Temporary memory it takes, in bytes, beyond the result; only asked where refusal() is null.
  virtual int64_t workspace_bytes(const ConvProblem&, const Device&) const { return 0; }

  // Bitwise the same result for the same input, device and thread count.
  virtual bool deterministic() const { return true; }

  // False if the error against fp64 may exceed twice that of PyTorch's own convolution in the same layout. It is then
  // chosen only where the configuration allows that; only asked where refusal() is null.
  virtual bool full_accuracy(const ConvProblem&, const Device&) const { return true; }
  // The sentence to refuse with where it is not.
  virtual const char* inaccuracy() const {
    return "its error may exceed twice PyTorch's, and the configuration does not allow that";
  }

  // False for the tests' oracle, which runs only when forced.
  virtual bool eligible() const { return true; }

  virtual void run(const ConvProblem& problem, const Device& device, ConvCall& call) const = 0;

  // Whether it runs a program on the result before that is stored; only asked where refusal() is null, with a call that
  // has neither acc nor outputs yet.
  virtual bool takes(const ConvProblem&, const Device&, const ProgramCall&) const { return false; }

  // Temporary memory that takes, in bytes.
  virtual int64_t workspace_bytes_with(const ProgramCall&, const ConvProblem&, const Device&) const { return 0; }

  // The convolution and the program, of which nothing but the outputs is written. In the buffers there is neither a
  // result nor a bias, which the program adds.
  virtual void run_with(const ProgramCall&, const ConvProblem&, const Device&, const ConvBuffers&) const {}
};

}  // namespace reformer
