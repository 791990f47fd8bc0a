// Calls that need torch's tensors and streams.
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <vector>

#include "c_api_common.h"
#include "dispatch/config.h"
#include "jit/current_stream.h"
#include "operators/run_plan.h"
#include "operators/tensors.h"
#include "plan/operator_calls.h"
#include "plan/profiler.h"

using namespace reformer;
using namespace reformer::c_api;

namespace {

// Returns 0; with the error set, -1, or -2 if Python has to raise an IndexError.
template <class Body>
int32_t run_guarded(const Body& body) {
  return guarded(-1, [&] {
    try {
      body();
      return 0;
    } catch (const std::out_of_range& error) {
      set_error(error.what());
      return -2;
    }
  });
}

}  // namespace

int32_t reformer_conv_run(const ReformerConvPlan* plan, const ReformerConvCall* call) {
  bool ran = true;
  const int32_t failed = run_guarded([&] {
    const gpu::Queue queue{call->device, call->device < 0 ? nullptr : current_stream(call->device)};
    try {
      static_cast<const ConvPlan*>(plan->plan)->run({call->x, call->w, call->y, call->bias, call->workspace, queue});
    } catch (const NotRun& why) {
      ran = false;
      set_error(why.what());
      if (why.is_stale) forget_decisions();
    }
  });
  return ran ? failed : 1;
}

void reformer_set_operator_calls(const ReformerOperatorCalls* calls) { set_operator_calls(*calls); }

void reformer_set_profiler(const ReformerProfiler* profiler) { set_profiler(*profiler); }

int32_t reformer_run_plan(int64_t plan, void* const* tensors, int64_t count, void** outputs) {
  return run_guarded([&] {
    std::vector<Tensor> given;
    given.reserve(size_t(count));
    for (int64_t i = 0; i < count; ++i) given.emplace_back(static_cast<AtenTensorHandle>(tensors[i]));
    for (const Tensor& output : run_plan(given, plan)) {
      AtenTensorHandle handle;
      TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(output.get(), &handle));
      *outputs++ = handle;
    }
  });
}
