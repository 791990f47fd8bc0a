// Layer norm on a GPU: its kernels are compiled at their first use and cached.
#pragma once

#include "device.h"
#include "hip/kernels/layer_norm_plan.h"

namespace reformer {

// Null if kernels can compute it, or a sentence that says why not.
const char* refuse_layer_norm(const LayerNormShape& shape, const Device& device);

// Temporary memory of the backward, in floats; only asked where it is not refused.
int64_t layer_norm_workspace_floats(const LayerNormShape& shape, const Device& device);

// Start it. args: the tensors and eps; each begins at a multiple of 16 bytes. In the backward, result, of_weight and
// of_bias may be null, and partial is the workspace.
void run_layer_norm(const LayerNormShape& shape, LayerNormArgs args, const Device& device, const gpu::Queue& queue);
void run_layer_norm_backward(const LayerNormShape& shape, LayerNormArgs args, const Device& device,
                             const gpu::Queue& queue);

}  // namespace reformer
