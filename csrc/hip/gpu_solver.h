// The base class of solvers with this package's GPU kernels.
#pragma once

#include "conv/solver.h"

namespace reformer {

class GpuSolver : public Solver {
 public:
  bool runs_on(const Device& device) const final { return device.kind == DeviceKind::cuda; }
  bool has_gpu_kernels() const final { return true; }
};

}  // namespace reformer
