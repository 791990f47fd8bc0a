// Layer norm on a GPU: its kernels are compiled at their first use and cached.
#pragma once

#include <functional>

#include "device.h"
#include "hip/kernels/layer_norm_plan.h"
#include "planned.h"

namespace reformer {

// How its kernels run over rows of one shape.
struct LayerNormRun {
  int64_t workspace_floats = 0;  // of temporary memory
  // Starts them. args: the tensors and eps; each begins at a multiple of 16 bytes, and partial is the workspace.
  std::function<void(LayerNormArgs args, const gpu::Queue& queue)> run;
};

// The plan, or the reason why no kernel computes it. A thread remembers it; good until it asks again.
const Planned<LayerNormRun>& planned_layer_norm(const LayerNormShape& shape, const Device& device);
// The same of the backward. What it computes: the input's gradient, and those of weight and bias, of which args may
// leave out one.
const Planned<LayerNormRun>& planned_layer_norm_backward(const LayerNormShape& shape, bool of_input, bool of_parameters,
                                                         const Device& device);

}  // namespace reformer
