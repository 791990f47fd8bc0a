// The C API of the package's other library, which has the kernels and is built once for all versions of torch. Its
// functions are looked up at run time in the file that Python has loaded before.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "c_api.h"

namespace reformer::core {

// Throws std::runtime_error if the file is not loaded or lacks one of the functions.
void connect(const char* file);

// The functions of c_api.h of the same names. On failure they throw std::runtime_error with the library's message.
ReformerConvPlan conv_plan(const ConvProblem& problem, int32_t device);
// Returns false if PyTorch's own convolution has to run instead.
bool conv_run(const ReformerConvPlan& plan, const ReformerConvCall& call);

// The `count` outputs of a plan. Tensors without other references are freed after their last use. Rethrows exceptions
// of PyTorch's operators.
std::vector<at::Tensor> run_plan(int64_t plan, std::vector<at::Tensor> tensors, size_t count);

}  // namespace reformer::core
