// The library's functions for callers without tensors of C++: torch_reformer/runtime/native.py calls these with
// ctypes. Functions that can fail return a negative number or null; reformer_error() then has the message. Strings
// belong to the library and are good until the thread's next call.
#pragma once

#include <cstdint>

#include "conv/problem.h"
#include "dispatch/config.h"
#include "dispatch/pytorch_settings.h"
#include "hip/devices.h"
#include "jit/gpu.h"
#include "plan/operator_calls.h"
#include "plan/profiler.h"

#define REFORMER_API extern "C" __attribute__((visibility("default")))

struct ReformerCandidate {
  const char* name;
  const char* reason;  // why it may not be chosen; null if it may
  double estimate_us;
  int64_t workspace_bytes;
  int32_t solver;         // its index among all solvers
  double probability;     // NaN if there is no selector, or it does not know this candidate
  const char* condition;  // what else has to hold, and is not known on this machine, or null
};

struct ReformerSelector {
  const char* arch;  // "cpu", gfxNNN or sm_NN
  int32_t decides;   // Decides (selector/selector.h)
  int32_t feature_version;
  int32_t rows, width, hidden, blocks, candidates;
  const char* const* names;     // of the candidates
  const float* const* tensors;  // in the order of selector/selector.h
};

struct ReformerConfig {
  const int32_t* forbidden;  // indices of solvers
  int64_t workspace_limit;
  int32_t forbidden_count;
  int32_t forced;
  int32_t deterministic_only;
  int32_t allow_reduced_accuracy;
  int32_t epilogues;  // Epilogues (dispatch/config.h)
};

REFORMER_API const char* reformer_error();

REFORMER_API int32_t reformer_problem_parse(const char* key, reformer::ConvProblem* problem);
REFORMER_API const char* reformer_problem_str(const reformer::ConvProblem* problem);
REFORMER_API const char* reformer_problem_kind(const reformer::ConvProblem* problem);

// The text form of a device; of this machine's CPU with torch's number of threads if text is null.
REFORMER_API const char* reformer_device(const char* text);

REFORMER_API int32_t reformer_solver_count();
REFORMER_API const char* reformer_solver_name(int32_t index);

// The index of the chosen solver.
REFORMER_API int32_t reformer_decide(const reformer::ConvProblem* problem, const char* device);

// The choices for `count` problems, as reformer_decide would give them one by one.
REFORMER_API int32_t reformer_decide_all(const reformer::ConvProblem* problems, int64_t count, const char* device,
                                         int32_t* choices);

// Fills in those of reformer_solver_count() solvers that run on the device, and how many they are; returns the index of
// the choice among all solvers.
REFORMER_API int32_t reformer_candidates(const reformer::ConvProblem* problem, const char* device,
                                         ReformerCandidate* candidates, int32_t* count);

// The plan for a problem on torch's GPU of this index, or on the CPU (-1), as decided for this thread.
struct ReformerConvPlan {
  const void* plan;  // good until the thread decides again
  int64_t workspace_bytes;
  int32_t aten;         // the layout in which PyTorch's own convolution computes it, or -1: reformer_conv_run does
  int32_t leaves_bias;  // 1: that adds none
};
REFORMER_API int32_t reformer_conv_plan(const reformer::ConvProblem* problem, int32_t device, ReformerConvPlan* plan);

// Memory as ConvBuffers has it; on a GPU the work goes to torch's current stream.
struct ReformerConvCall {
  void *x, *w, *y;
  const void* bias;
  void* workspace;
  int32_t device;
};
// Returns 1 where nothing was computed and PyTorch's own convolution has to; reformer_error() then has what the user
// should hear of it, if anything.
REFORMER_API int32_t reformer_conv_run(const ReformerConvPlan* plan, const ReformerConvCall* call);

// Runs the plan of this number. tensors are handles of torch's C API (AtenTensorHandle), which are taken over. The
// outputs, as many as the plan gives, are new ones.
REFORMER_API int32_t reformer_run_plan(int64_t plan, void* const* tensors, int64_t count, void** outputs);

// How plans call PyTorch's operators.
REFORMER_API void reformer_set_operator_calls(const ReformerOperatorCalls* calls);
// How plans and their steps are ranges of PyTorch's profiler.
REFORMER_API void reformer_set_profiler(const ReformerProfiler* profiler);

// The CPU cost model's class of the problem and its three terms, in microseconds of the nominal machine (cpu/cost.h).
REFORMER_API int32_t reformer_cost_class(const reformer::ConvProblem* problem);
REFORMER_API int32_t reformer_cost_terms(const reformer::ConvProblem* problem, const char* device, double* terms);

// Where the program of this code runs behind a problem's convolution, as choose_fusion() (dispatch/decide.h) has it:
// solvers by their indices. The program's tensors are of the problem's data type, those of channels fp32.
struct ReformerEpilogue {
  int32_t separate;
  int32_t fused;  // -1: no kernel runs the program
  int32_t is_fused;
  int32_t has_features;
  double probability;
};
// Writes rows and weights of tokens * terms terms, too, where it has features.
REFORMER_API int32_t reformer_epilogue(const reformer::ConvProblem* problem, const char* device, const int64_t* code,
                                       int64_t size, ReformerEpilogue* epilogue, int32_t* rows, float* weights);

// The sequence that a selector reads (selector/features.h): its version, the numbers of tokens, of terms in each,
// and of rows of the embedding matrix, by what the selector decides; then, for each of `count` problems, the rows and
// weights of tokens * terms terms.
REFORMER_API void reformer_feature_shape(int32_t decides, int32_t shape[4]);
REFORMER_API int32_t reformer_features(const reformer::ConvProblem* problems, int64_t count, const char* device,
                                       int32_t* rows, float* weights);

// True if a selector could decide. Makes one decide for an architecture from now on, or no longer; the tensors are
// copied.
REFORMER_API int32_t reformer_selector_check(const ReformerSelector* selector);
REFORMER_API int32_t reformer_selector_set(const ReformerSelector* selector);
REFORMER_API int32_t reformer_selector_remove(const char* arch, int32_t decides);

// How many candidates the selector of a device's kernels has, and their logits for each of `count` problems. `isa` is
// an index of Isa (device.h) that this machine has, or -1 for the best.
REFORMER_API int32_t reformer_selector_candidates(const char* device);
REFORMER_API int32_t reformer_selector_logits(const reformer::ConvProblem* problems, int64_t count, const char* device,
                                              int32_t isa, float* logits);

REFORMER_API int32_t reformer_set_config(const ReformerConfig* config);

// As in pytorch_settings.h. What is read for a device is 0 or 1.
REFORMER_API void reformer_set_tf32_reader(reformer::SettingReader reader);
REFORMER_API void reformer_set_deterministic_reader(reformer::SettingReader reader);
REFORMER_API int32_t reformer_allows_tf32(const char* device);

REFORMER_API void reformer_cache_counts(int64_t* hits, int64_t* misses);

// The operations of programs (program/ops.def), by their numbers.
REFORMER_API int32_t reformer_operation_count();
REFORMER_API const char* reformer_operation_name(int32_t number);
REFORMER_API int32_t reformer_operation_operands(int32_t number);

// As in plan/interned.h.
REFORMER_API int64_t reformer_intern_plan(const int64_t* code, int64_t size);
REFORMER_API void reformer_release_plan(int64_t number);
REFORMER_API void reformer_interned_counts(int64_t* programs, int64_t* plans);

// GPUs (jit). An entry is a kernel, as in jit/gpu.h.
struct ReformerEntry {
  const char* file;
  const char* name;
  const char* arguments;
  const char* text;
};
struct ReformerLaunch {
  int32_t device;
  void* stream;
  uint32_t blocks[3];
  uint32_t threads, shared_bytes, cluster_z, pdl;
};

// The table of GPUs that are known (hip/devices.def), and its length.
REFORMER_API const reformer::GpuSpec* reformer_gpu_specs(int32_t* count);

// Where code objects and sources are looked for from now on, instead of in the package: for tests.
REFORMER_API void reformer_gpu_kernels(const char* folder);
// Where NVRTC is, if neither torch nor the loader has it (jit/rtc.h).
REFORMER_API void reformer_gpu_nvrtc(const char* file);
REFORMER_API const char* reformer_gpu_architecture(int32_t device);

// Why there are no kernels for an architecture; an empty text if there are.
REFORMER_API const char* reformer_gpu_unavailable(const char* architecture);

// Runs a solver on plain dense memory, as a device of this name would; a GPU's kernels are given to `launcher`. For
// tests, which emulate them.
REFORMER_API int32_t reformer_run(const reformer::ConvProblem* problem, const char* device, int32_t solver, void* x,
                                  void* w, void* y, const void* bias, reformer::gpu::Launcher launcher);

REFORMER_API int32_t reformer_gpu_launch(const ReformerEntry* entry, const ReformerLaunch* launch,
                                         const void* arguments, int64_t bytes);

// Compiles a kernel as a device that has no packaged code for it would, and says how many bytes that made, at `code`
// until the thread's next call. `cached` becomes 1 if the cache on disk had it.
REFORMER_API int64_t reformer_gpu_compile(const ReformerEntry* entry, const char* architecture, const char** code,
                                          int32_t* cached);

// Launches of this thread are noted instead of done until _end_noting, which calls `missing` with each kernel whose
// code is not there for the architecture, and its source's name and text, all good during the call. _add_compiled takes
// the code object that a process of its own made of it with the compiler: lines of its library, the prefix of its
// functions, what they call code, and the options.
using ReformerMissing = void (*)(const ReformerEntry* entry, const char* name, const char* source);
REFORMER_API void reformer_gpu_begin_noting();
REFORMER_API int32_t reformer_gpu_end_noting(const char* architecture, ReformerMissing missing);
REFORMER_API const char* reformer_gpu_compiler(const char* architecture);
REFORMER_API int32_t reformer_gpu_add_compiled(const ReformerEntry* entry, const char* architecture, const char* code,
                                               int64_t size);

// The folder of that cache, or an empty text.
REFORMER_API const char* reformer_gpu_cache_folder();
