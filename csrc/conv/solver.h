// The contract between the choice and the algorithms. No torch, no GPU's headers: an algorithm sees plain pointers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "device.h"
#include "planned.h"
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
  void* workspace;   // as many bytes as the plan asks for, 64-byte aligned
  gpu::Queue queue;  // on a GPU: where the pointers belong, each a multiple of 16 bytes, and work goes
};

// Nothing was computed, for a reason that was not known when the plan was made: PyTorch's own convolution can compute
// it.
struct NotRun : std::runtime_error {
  // message: for the user; empty if there is nothing wrong. stale: the solver would plan otherwise
  // by now, so that decisions are to be forgotten.
  NotRun(const std::string& message, bool stale) : std::runtime_error(message), is_stale(stale) {}
  const bool is_stale;
};

// How a solver computes a problem on a device: all that can be found out before the tensors are there, so that a call
// that comes again is launched only. One of aten, run and run_with is set. Runs may be several at once.
struct ConvPlan {
  double us = 0;                     // expected, from a cost model
  int64_t workspace_bytes = 0;       // of temporary memory beyond the result
  bool deterministic = true;         // bitwise the same result for the same input, device and thread count
  const char* condition = nullptr;   // what else has to hold, unknown on this machine ("MIOpen agrees"), or null
  const char* inaccuracy = nullptr;  // the reason why it may be too inaccurate; null if it is not

  // It is PyTorch's own convolution, with the operands converted to this layout first: for whoever owns the tensors.
  std::optional<Layout> aten;
  // Throws NotRun where PyTorch's own convolution has to run in its place.
  std::function<void(const ConvBuffers&)> run;
  bool leaves_bias = false;  // run adds none: whoever calls it does
  bool last_resort = false;  // often many times slower than others: not chosen for want of another that is known
  // The convolution and the program that it was planned with, of which nothing but the outputs is written. In the
  // buffers there is neither a result nor a bias, which the program adds.
  std::function<void(const ConvBuffers&, const ProgramCall&)> run_with;
};

// The inaccuracy of those whose error against fp64 may exceed twice that of PyTorch's own convolution in the same
// layout.
constexpr const char* kInaccurate = "its error may exceed twice PyTorch's, and the configuration does not allow that";

class Solver {
 public:
  virtual ~Solver() = default;

  // A stable identifier: lower case, digits and underscores, or the vendor's own. Timings and weights files refer to
  // it.
  virtual const char* name() const = 0;

  virtual bool runs_on(const Device& device) const { return device.kind == DeviceKind::cpu; }

  // True if it launches kernels of csrc/hip.
  virtual bool has_gpu_kernels() const { return false; }

  // True if its plans have estimates; if not, only a selector that knows the solver chooses it.
  virtual bool estimates() const { return true; }

  // False for the tests' oracle, which runs only when forced.
  virtual bool eligible() const { return true; }

  // Its plan for the problem on this device, where it runs; or the reason why it
  // can't compute that.
  virtual Planned<ConvPlan> plan(const ConvProblem& problem, const Device& device) const = 0;

  // Its plan to run a program on the result before that is stored; only asked where plan() has no reason, with a call
  // that has neither acc nor outputs yet, and ranked by what plan() says. The plan may be run with any call that has
  // the same key (program_key.h).
  virtual Planned<ConvPlan> plan_with(const ProgramCall&, const ConvProblem&, const Device&) const {
    return "it runs no programs";
  }
};

}  // namespace reformer
