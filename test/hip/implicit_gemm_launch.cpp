// implicit_gemm_launch.h as C functions, for Python: tests by the emulator, and timings.
#include "hip/gemm/implicit_gemm_launch.h"

#include "plan_program.h"

using namespace reformer;

extern "C" {

int kernel_count() { return int(implicit_gemm_kernels().size()); }
const char* kernel_name(int i) { return implicit_gemm_kernels()[size_t(i)].entry.name; }
const char* kernel_arguments(int i) { return implicit_gemm_kernels()[size_t(i)].entry.arguments; }
int args_bytes() { return int(sizeof(ImplicitGemmArgs)); }
int finish_args_bytes() { return int(sizeof(ImplicitGemmFinishArgs)); }
const char* finish_name(int dtype) { return implicit_gemm_finish(static_cast<DType>(dtype))->entry.name; }

// numbers: blocks x, y, z, threads, shared bytes, cluster; the same of the finish; partials, steps, workspace bytes.
const char* plan(const int32_t* problem, int kernel, int splits, int cluster, int tiles, int warp,
                 void* const* pointers, void* args, void* finish_args, int64_t* numbers) {
  const ConvProblem p = problem_of(problem);
  ImplicitGemmConfig plan;
  if (const char* sentence =
          configure_implicit_gemm(p, implicit_gemm_kernels()[size_t(kernel)], {splits, cluster, tiles}, warp, plan))
    return sentence;
  bind(plan, p.direction, pointers[0], pointers[1], pointers[2], pointers[3], pointers[4], pointers[5]);
  *static_cast<ImplicitGemmArgs*>(args) = plan.args;
  *static_cast<ImplicitGemmFinishArgs*>(finish_args) = plan.finish_args;
  append(numbers, plan.launch);
  append(numbers, plan.finish_launch);
  *numbers++ = plan.partials;
  *numbers++ = plan.steps;
  *numbers++ = plan.workspace_bytes;
  return nullptr;
}

// A program in the kernel. tensors: x and the filter. Returns a sentence, or null.
const char* plan_with_program(const int32_t* problem, const void* const* tensors, const GivenProgram* given, int kernel,
                              int tiles, int warp) {
  const ConvProblem p = problem_of(problem);
  const ImplicitGemmKernel& of = implicit_gemm_kernels()[size_t(kernel)];
  ImplicitGemmConfig plan;
  if (const char* sentence = configure_implicit_gemm(p, of, {1, 1, tiles}, warp, plan)) return sentence;
  const auto start = [&](const ProgramCall& call) {
    const KernelWithProgram kernel(of.entry, call);
    bind(plan, p.direction, tensors[0], nullptr, tensors[1], nullptr, kernel.result_of(call), nullptr);
    kernel.launch(plan.launch, keeps_what_is_started, plan.args, call);
  };
  return plan_program(*given, p, {int(16 / element_size(Stored(int8_t(p.dtype))))}, start);
}

// How many tiles of rows a block should compute.
int tiles_worth_trying(const int32_t* problem, int kernel, int warp, int multiprocessors) {
  return implicit_gemm_tiles(problem_of(problem), implicit_gemm_kernels()[size_t(kernel)], warp, multiprocessors);
}

// Fills `to` with pairs, splits and clusters, at most 16 of them, and returns how many; 0 if the kernel is not for
// this.
int cuts_worth_trying(const int32_t* problem, int kernel, int warp, int multiprocessors, int clusters, int32_t* to) {
  ImplicitGemmConfig plan;
  if (configure_implicit_gemm(problem_of(problem), implicit_gemm_kernels()[size_t(kernel)], {}, warp, plan)) return 0;
  int count = 0;
  for (const ImplicitGemmSchedule& schedule : implicit_gemm_schedules(plan, multiprocessors, clusters != 0)) {
    *to++ = schedule.splits;
    *to++ = schedule.cluster;
    ++count;
  }
  return count;
}
}
