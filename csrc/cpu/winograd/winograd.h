// Winograd convolution for 3x3 filters (Lavin & Gray, https://arxiv.org/abs/1509.09308).
//
// Error against fp64, as a multiple of that of PyTorch (oneDNN with AVX-512) in the same layout: the largest error, and
// the root of the mean square. Worst case of forward and input_grad, and of inputs that are normal, uniform, or normal
// and clamped at zero; 16 to 1024 channels:
//             NCHW                    NHWC, 16 channels   NHWC, 32 to 1024 channels
//   2x4       max 1.7, rms 1.6        max 1.1, rms 1.4    max 0.7, rms 1.0
//   4x4       max 3.5, rms 2.7        max 2.3, rms 2.3    max 1.5, rms 1.7
// Filters are transformed in fp64, products are summed in cascade, and the points are chosen for small errors
// (toom_cook.h). With the usual points and plain sums 4x4 has 10 to 40 times PyTorch's error.
//
// Errors are relative to the largest values of a tile, and non-finite values spread over it: an infinity may become
// NaN, and a NaN may reach outputs up to three rows or columns beyond the filter's reach.
#pragma once

#include "config.h"

namespace reformer {

// The config, without pointers, of an fp32 forward or input_grad problem with 3x3 filters, stride and dilation 1, one
// group, and padding 0 to 2.
WinogradConfig winograd_config(const ConvProblem& problem, const Device& device, WinogradTile tile);
// The config with its pointers.
WinogradConfig bound(WinogradConfig config, const ConvBuffers& buffers);
int64_t winograd_workspace_bytes(const WinogradConfig& config, const Device& device);
void run_winograd(const WinogradConfig& config, const Device& device, void* workspace);

}  // namespace reformer
