// The interface between the choice and the algorithms. Free of torch and of GPU headers: an algorithm sees plain
// pointers.
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

// The tensors of <conv(x, w), y>, dense in the problem's layout (w: KCRS or KRSC). The direction determines which one
// is written: y in forward, x in input_grad, w in weight_grad. The other two are only read. None of them overlap.
struct ConvBuffers {
  void* x;
  void* w;
  void* y;
  const void* bias;  // k elements of the problem's data type, or null
  void* workspace;   // plan.workspace_bytes bytes, 64-byte aligned
  gpu::Queue queue;  // on a GPU: the device of the pointers, each a multiple of 16 bytes, and the stream of the work
};

// Thrown if nothing was computed, for a reason unknown when the plan was made. PyTorch's own convolution can compute
// it.
struct NotRun : std::runtime_error {
  // message: for the user; empty if nothing is wrong. stale: the solver would now plan differently, so that decisions
  // have to be forgotten.
  NotRun(const std::string& message, bool stale) : std::runtime_error(message), is_stale(stale) {}
  const bool is_stale;
};

// How a solver computes a problem on a device: everything that can be decided before the tensors are there, so that a
// repeated call only launches. Exactly one of aten, run and run_with is set. Runs may be concurrent.
struct ConvPlan {
  double us = 0;                     // expected time, from a cost model
  int64_t workspace_bytes = 0;       // temporary memory besides the result
  bool deterministic = true;         // bitwise repeatable for the same input, device and number of threads
  const char* condition = nullptr;   // a further condition unknown on this machine ("MIOpen agrees"), or null
  const char* inaccuracy = nullptr;  // why it may be too inaccurate; null if it is accurate enough

  // Set if it is PyTorch's own convolution on operands converted to this layout; the owner of the tensors runs it.
  std::optional<Layout> aten;
  // Throws NotRun if PyTorch's own convolution has to run instead.
  std::function<void(const ConvBuffers&)> run;
  bool leaves_bias = false;  // run does not add the bias; the caller does
  bool last_resort =
      false;  // often many times slower than others: not chosen merely because the selector knows no other
  // Runs the convolution and the program that it was planned with, and writes only the program's outputs. The buffers
  // have neither a result nor a bias; the program adds the bias.
  std::function<void(const ConvBuffers&, const ProgramCall&)> run_with;
};

// ConvPlan::inaccuracy of solvers whose error against fp64 may exceed twice that of PyTorch's own convolution in the
// same layout.
constexpr const char* kInaccurate = "its error may exceed twice PyTorch's, and the configuration does not allow that";

class Solver {
 public:
  virtual ~Solver() = default;

  // A stable identifier: lower case, digits and underscores, or the vendor's own name. Files of timings and weights
  // refer to it.
  virtual const char* name() const = 0;

  virtual bool runs_on(const Device& device) const { return device.kind == DeviceKind::cpu; }

  // True if it launches kernels of csrc/hip.
  virtual bool has_gpu_kernels() const { return false; }

  // True if its plans have time estimates. If not, it is chosen only by a selector that knows it.
  virtual bool estimates() const { return true; }

  // False for the oracle of the tests, which runs only when forced.
  virtual bool eligible() const { return true; }

  // The plan for the problem on a device that the solver runs on, or the reason why the solver can't compute it.
  virtual Planned<ConvPlan> plan(const ConvProblem& problem, const Device& device) const = 0;

  // The plan that also runs a program on the result before that is stored. Called only if plan() succeeds, with a call
  // that has neither acc nor outputs yet; ranked by plan()'s estimate. The plan may be run with any call that has the
  // same key (program_key.h).
  virtual Planned<ConvPlan> plan_with(const ProgramCall&, const ConvProblem&, const Device&) const {
    return "it runs no programs";
  }
};

}  // namespace reformer
