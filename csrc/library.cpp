// The operators: all schemas and all registrations.
#include <torch/csrc/stable/library.h>

#include "c_api.h"
#include "dispatch/config.h"
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
#include "plan/operator_calls.h"

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
  m.def("_embedding_grad(Tensor grad, Tensor ids, SymInt rows, SymInt padding, bool by_frequency) -> Tensor");
  m.def("_row_numbers(Tensor index, SymInt rows, str of) -> Tensor");
  m.def("_sort_rows(Tensor numbers, SymInt rows) -> (Tensor, Tensor)");
  m.def("_segment_sum(Tensor source, Tensor order, Tensor begins, Tensor? base, Tensor? factors) -> Tensor");
  for (const char* unfused : {"", "_unfused"}) {  // the latter by PyTorch's own operations
    const std::string name = unfused,
                      geometry = "SymInt[2] window, SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation";
    m.def(("_max_pool2d" + name + "(Tensor input, " + geometry + ", bool ceil_mode) -> (Tensor, Tensor)").c_str());
    m.def(("_max_pool2d_grad" + name + "(Tensor grad, Tensor places, SymInt[2] size, " + geometry + ") -> Tensor")
              .c_str());
  }
  m.def("_contiguous(Tensor tensor) -> Tensor");
  m.def("_cast_all(Tensor[] tensors, Tensor(a!)[] to) -> ()");
  m.def("_scale_(Tensor(a!) tensor, Tensor factor) -> Tensor(a!)");
  // What autograd's rules of plain tensors run, which have none of their own: few arguments, cheap to hand over.
  // geometry is packed, plan a number (plan/interned.h).
  m.def("_conv2d(Tensor input, Tensor weight, Tensor? bias, int geometry) -> Tensor");
  m.def("_run(Tensor[] tensors, int plan) -> Tensor[]");
  // The same in two calls, between which the caller lets go of the tensors: held is what _hold gives.
  m.def("_hold(Tensor[] tensors) -> int");
  m.def("_run_held(int held, int plan) -> Tensor[]");
}

#define REFORMER_IMPLEMENT(m)                                             \
  m.impl("conv2d", TORCH_BOX(&reformer::conv2d));                         \
  m.impl("conv2d_input_grad", TORCH_BOX(&reformer::conv2d_input_grad));   \
  m.impl("conv2d_weight_grad", TORCH_BOX(&reformer::conv2d_weight_grad)); \
  m.impl("_conv2d", TORCH_BOX(&reformer::conv2d_of_geometry));            \
  m.impl("_contiguous", TORCH_BOX(&reformer::contiguous_copy));           \
  m.impl("_embedding_grad", TORCH_BOX(&reformer::embedding_grad));        \
  m.impl("_max_pool2d", TORCH_BOX(&reformer::max_pool2d));                \
  m.impl("_max_pool2d_grad", TORCH_BOX(&reformer::max_pool2d_grad));      \
  m.impl("_row_numbers", TORCH_BOX(&reformer::row_numbers));              \
  m.impl("_scale_", TORCH_BOX(&reformer::scale_in_place));                \
  m.impl("_segment_sum", TORCH_BOX(&reformer::segment_sum));              \
  m.impl("_sort_rows", TORCH_BOX(&reformer::sort_rows));                  \
  m.impl("_run", TORCH_BOX(&reformer::run_plan));                         \
  m.impl("stitch", TORCH_BOX(&reformer::stitch));                         \
  m.impl("conv2d_epilogue", TORCH_BOX(&reformer::conv2d_epilogue))

STABLE_TORCH_LIBRARY_IMPL(reformer, CPU, m) { REFORMER_IMPLEMENT(m); }
STABLE_TORCH_LIBRARY_IMPL(reformer, CUDA, m) { REFORMER_IMPLEMENT(m); }

// No kernels of a device, or there may be no tensor to tell it.
STABLE_TORCH_LIBRARY_IMPL(reformer, CompositeExplicitAutograd, m) {
  m.impl("_cast_all", TORCH_BOX(&reformer::cast_all));
  m.impl("_hold", TORCH_BOX(&reformer::hold_tensors));
  m.impl("_run_held", TORCH_BOX(&reformer::run_plan_of_held));
}

// For csrc/aten, which has tensors in C++ (c_api.h).
namespace {

const bool has_stream_reader = (reformer::gpu::set_stream_reader(&reformer::current_stream), true);

template <class Body>
int32_t guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::out_of_range& error) {
    reformer::report_error(error.what());
    return -2;
  } catch (const std::exception& error) {
    reformer::report_error(error.what());
    return -1;
  }
}

}  // namespace

int32_t reformer_conv_run(const ReformerConvPlan* plan, const ReformerConvCall* call) {
  bool ran = true;
  const int32_t failed = guarded([&] {
    const reformer::gpu::Queue queue{call->device, call->device < 0 ? nullptr : reformer::current_stream(call->device)};
    try {
      static_cast<const reformer::ConvPlan*>(plan->plan)
          ->run({call->x, call->w, call->y, call->bias, call->workspace, queue});
    } catch (const reformer::NotRun& why) {
      ran = false;
      reformer::report_error(why.what());
      if (why.is_stale) reformer::forget_decisions();
    }
  });
  return ran ? failed : 1;
}

void reformer_set_operator_calls(const ReformerOperatorCalls* calls) { reformer::set_operator_calls(*calls); }

void reformer_set_profiler(const ReformerProfiler* profiler) { reformer::set_profiler(*profiler); }

int32_t reformer_run_plan(int64_t plan, void* const* tensors, int64_t count, void** outputs) {
  return guarded([&] {
    std::vector<reformer::Tensor> given;
    given.reserve(size_t(count));
    for (int64_t i = 0; i < count; ++i) given.emplace_back(static_cast<AtenTensorHandle>(tensors[i]));
    for (const reformer::Tensor& output : reformer::run_plan(given, plan)) {
      AtenTensorHandle handle;
      TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(output.get(), &handle));
      *outputs++ = handle;
    }
  });
}
