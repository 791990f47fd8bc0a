// The C API of the package's other library, which has the kernels and is built for every torch.
// Found at run time, in the file that Python loaded before.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "c_api.h"

namespace reformer::core {

// Throws std::runtime_error if the file is not loaded or has no such functions.
void connect(const char* file);

// The functions of c_api.h of these names. What fails throws std::runtime_error with its message.
ReformerConvPlan conv_plan(const ConvProblem& problem, int32_t device);
// False where PyTorch's own convolution has to run instead.
bool conv_run(const ReformerConvPlan& plan, const ReformerConvCall& call);

// The outputs of a plan, of which there are `count`. Tensors that nobody else refers to are freed at their last use.
// Throws what an operator of PyTorch's in it threw.
std::vector<at::Tensor> run_plan(int64_t plan, std::vector<at::Tensor> tensors, size_t count);

}  // namespace reformer::core
