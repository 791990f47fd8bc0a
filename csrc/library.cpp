// Schemas and registrations of all operators.
#include <torch/csrc/stable/library.h>

#include "jit/current_stream.h"
#include "operators/casts.h"
#include "operators/contiguous.h"
#include "operators/conv.h"
#include "operators/embedding.h"
#include "operators/max_pool.h"
#include "operators/program.h"
#include "operators/run_plan.h"
#include "operators/scale.h"
#include "operators/segments.h"
#include "operators/tensors.h"

STABLE_TORCH_LIBRARY(reformer, m) {
  m.def(
      "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0, "
      "SymInt[2] dilation=1, SymInt groups=1) -> Tensor");
  m.def(
      "conv2d_input_grad(SymInt[] input_size, Tensor weight, Tensor grad_output, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1) -> Tensor");
  m.def(
      "conv2d_weight_grad(SymInt[] weight_size, Tensor input, Tensor grad_output, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1) -> Tensor");
  m.def("conv2d_bias_grad(Tensor grad_output) -> Tensor");
  m.def("stitch(Tensor acc, Tensor[] tensors, int[] program) -> Tensor[]");
  m.def("_stitch_unfused(Tensor acc, Tensor[] tensors, int[] program) -> Tensor[]");  // by PyTorch's own operations
  m.def(
      "conv2d_epilogue(Tensor input, Tensor weight, Tensor[] tensors, int[] program, SymInt[2] stride=1, "
      "SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1) -> Tensor[]");
  m.def(
      "_embedding_grad(Tensor grad, Tensor ids, SymInt rows, SymInt padding, bool by_frequency, "
      "Tensor? base=None, SymInt tables=1) -> Tensor");
  m.def(
      "_add_embedding_grad_(Tensor(a!) sum, Tensor grad, Tensor ids, SymInt padding=-1, SymInt tables=1) -> "
      "Tensor(a!)");
  m.def("_row_numbers(Tensor index, SymInt rows, str of, SymInt tables=1) -> Tensor");
  m.def("_sort_rows(Tensor numbers, SymInt rows) -> (Tensor, Tensor)");
  m.def("_segment_sum(Tensor source, Tensor order, Tensor begins, Tensor? base, Tensor? factors) -> Tensor");
  for (const char* unfused : {"", "_unfused"}) {  // _unfused: by PyTorch's own operations
    const std::string name = unfused,
                      geometry = "SymInt[2] window, SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation";
    m.def(("_max_pool2d" + name + "(Tensor input, " + geometry + ", bool ceil_mode) -> (Tensor, Tensor)").c_str());
    m.def(("_max_pool2d_grad" + name + "(Tensor grad, Tensor places, SymInt[2] size, " + geometry + ") -> Tensor")
              .c_str());
  }
  m.def("_contiguous(Tensor tensor) -> Tensor");
  m.def("_cast_all(Tensor[] tensors, Tensor(a!)[] to) -> ()");
  m.def("_scale_(Tensor(a!) tensor, Tensor factor) -> Tensor(a!)");
  // For autograd's rules on plain tensors. These operators have no rules of their own and few arguments, which are
  // cheap to pass: geometry is packed, plan a number (plan/interned.h).
  m.def("_conv2d(Tensor input, Tensor weight, Tensor? bias, int geometry) -> Tensor");
  // A plan may write its inputs, and give them and views of them.
  m.def("_run(Tensor(a!)[] tensors, int plan) -> Tensor(a)[]");
  // _run in two calls, between which the caller can release its tensors: `held` is what _hold returns.
  m.def("_hold(Tensor[] tensors) -> int");
  m.def("_run_held(int held, int plan) -> Tensor[]");
}

#define REFORMER_IMPLEMENT(m)                                               \
  m.impl("conv2d", TORCH_BOX(&reformer::conv2d));                           \
  m.impl("conv2d_input_grad", TORCH_BOX(&reformer::conv2d_input_grad));     \
  m.impl("conv2d_weight_grad", TORCH_BOX(&reformer::conv2d_weight_grad));   \
  m.impl("_conv2d", TORCH_BOX(&reformer::conv2d_of_geometry));              \
  m.impl("_contiguous", TORCH_BOX(&reformer::contiguous_copy));             \
  m.impl("_embedding_grad", TORCH_BOX(&reformer::embedding_grad));          \
  m.impl("_add_embedding_grad_", TORCH_BOX(&reformer::add_embedding_grad)); \
  m.impl("_max_pool2d", TORCH_BOX(&reformer::max_pool2d));                  \
  m.impl("_max_pool2d_grad", TORCH_BOX(&reformer::max_pool2d_grad));        \
  m.impl("_row_numbers", TORCH_BOX(&reformer::row_numbers));                \
  m.impl("_scale_", TORCH_BOX(&reformer::scale_in_place));                  \
  m.impl("_segment_sum", TORCH_BOX(&reformer::segment_sum));                \
  m.impl("_sort_rows", TORCH_BOX(&reformer::sort_rows));                    \
  m.impl("_run", TORCH_BOX(&reformer::run_plan));                           \
  m.impl("stitch", TORCH_BOX(&reformer::stitch));                           \
  m.impl("conv2d_epilogue", TORCH_BOX(&reformer::conv2d_epilogue))

STABLE_TORCH_LIBRARY_IMPL(reformer, CPU, m) { REFORMER_IMPLEMENT(m); }
STABLE_TORCH_LIBRARY_IMPL(reformer, CUDA, m) { REFORMER_IMPLEMENT(m); }

// Independent of the device, or possibly without a tensor to dispatch on.
STABLE_TORCH_LIBRARY_IMPL(reformer, CompositeExplicitAutograd, m) {
  m.impl("_cast_all", TORCH_BOX(&reformer::cast_all));
  m.impl("_hold", TORCH_BOX(&reformer::hold_tensors));
  m.impl("_run_held", TORCH_BOX(&reformer::run_plan_of_held));
}

namespace {

const bool has_stream_reader = (reformer::gpu::set_stream_reader(&reformer::current_stream), true);

}  // namespace
