#include "core.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/tensor_converter.h>

#include <stdexcept>
#include <string>

#include "operator_call.h"
#include "profiler.h"

namespace reformer::core {
namespace {

struct Functions {
  decltype(&reformer_error) error;
  decltype(&reformer_conv_plan) conv_plan;
  decltype(&reformer_conv_run) conv_run;
  decltype(&reformer_run_plan) run_plan;
  decltype(&reformer_set_operator_calls) set_operator_calls;
  decltype(&reformer_set_profiler) set_profiler;
  decltype(&reformer_set_deterministic_reader) set_deterministic_reader;
};
Functions functions;

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function)
    throw std::runtime_error(std::string("torch_reformer's libraries are of two versions: one has no ") + name +
                             "; build both anew");
}

void check(int32_t failed) {
  if (failed == -2) throw std::out_of_range(functions.error());  // becomes an IndexError
  if (failed) throw std::runtime_error(functions.error());
}

}  // namespace

void connect(const char* file) {
  void* const library = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
  if (!library) throw std::runtime_error(std::string(file) + " is not loaded");
  find(library, "reformer_error", functions.error);
  find(library, "reformer_conv_plan", functions.conv_plan);
  find(library, "reformer_conv_run", functions.conv_run);
  find(library, "reformer_run_plan", functions.run_plan);
  find(library, "reformer_set_operator_calls", functions.set_operator_calls);
  find(library, "reformer_set_profiler", functions.set_profiler);
  find(library, "reformer_set_deterministic_reader", functions.set_deterministic_reader);
  const ReformerOperatorCalls calls = OperatorCall::functions();
  functions.set_operator_calls(&calls);
  const ReformerProfiler profiler = profiler_functions();
  functions.set_profiler(&profiler);
  functions.set_deterministic_reader([]() -> int32_t {
    const at::Context& context = at::globalContext();
    return context.deterministicAlgorithms() || context.deterministicCuDNN();
  });
}

ReformerConvPlan conv_plan(const ConvProblem& problem, int32_t device) {
  ReformerConvPlan plan;
  check(functions.conv_plan(&problem, device, &plan));
  return plan;
}

bool conv_run(const ReformerConvPlan& plan, const ReformerConvCall& call) {
  const int32_t status = functions.conv_run(&plan, &call);
  if (status == 1) {
    if (const std::string why = functions.error(); !why.empty()) TORCH_WARN(why);
    return false;
  }
  check(status);
  return true;
}

std::vector<at::Tensor> run_plan(int64_t plan, std::vector<at::Tensor> tensors, size_t count) {
  namespace aoti = torch::aot_inductor;
  const std::vector<AtenTensorHandle> given = aoti::unsafe_alloc_new_handles_from_tensors(tensors);
  tensors.clear();
  std::vector<AtenTensorHandle> results(count);
  OperatorCall::take_exception();  // left over from another run
  const int32_t failed = functions.run_plan(plan, reinterpret_cast<void* const*>(given.data()), int64_t(given.size()),
                                            reinterpret_cast<void**>(results.data()));
  if (const std::exception_ptr exception = OperatorCall::take_exception(); failed && exception)
    std::rethrow_exception(exception);  // as the operator threw it, even if it is a Python exception
  check(failed);
  return aoti::alloc_tensors_by_stealing_from_handles(results.data(), count);
}

}  // namespace reformer::core
