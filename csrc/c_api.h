// The library's functions for callers that can't pass C++ tensors: torch_reformer/runtime/native.py calls them with
// ctypes. Functions that can fail return a negative number or null; reformer_error() then returns the message. Returned
// strings belong to the library and are valid until the thread's next call.
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
  const char* reason;  // why the solver may not be chosen; null if it may
  double estimate_us;
  int64_t workspace_bytes;
  int32_t solver;         // its index among all solvers
  double probability;     // NaN if there is no selector or it does not know this candidate
  const char* condition;  // a further condition that can't be checked on this machine, or null
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

// Text form of a device; if text is null, of this machine's CPU with torch's number of threads.
REFORMER_API const char* reformer_device(const char* text);

REFORMER_API int32_t reformer_solver_count();
REFORMER_API const char* reformer_solver_name(int32_t index);

// Index of the chosen solver.
REFORMER_API int32_t reformer_decide(const reformer::ConvProblem* problem, const char* device);

// The choices for `count` problems, each as reformer_decide would make it.
REFORMER_API int32_t reformer_decide_all(const reformer::ConvProblem* problems, int64_t count, const char* device,
                                         int32_t* choices);

// Fills in those of the reformer_solver_count() solvers that run on the device, and their number. Returns the index of
// the choice among all solvers. If size is not 0, the program of this code follows.
REFORMER_API int32_t reformer_candidates(const reformer::ConvProblem* problem, const char* device, const int64_t* code,
                                         int64_t size, ReformerCandidate* candidates, int32_t* count);

// The plan decided in this thread for a problem on torch's GPU of this index, or on the CPU (-1).
struct ReformerConvPlan {
  const void* plan;  // valid until the thread decides again
  int64_t workspace_bytes;
  int32_t aten;         // the layout in which PyTorch's own convolution computes it, or -1 if reformer_conv_run does
  int32_t leaves_bias;  // 1: the plan does not add the bias
};
REFORMER_API int32_t reformer_conv_plan(const reformer::ConvProblem* problem, int32_t device, ReformerConvPlan* plan);

// Pointers as in ConvBuffers; on a GPU the work is enqueued on torch's current stream.
struct ReformerConvCall {
  void *x, *w, *y;
  const void* bias;
  void* workspace;
  int32_t device;
};
// Returns 1 if nothing was computed and PyTorch's own convolution has to run instead; reformer_error() then returns a
// message for the user, which may be empty.
REFORMER_API int32_t reformer_conv_run(const ReformerConvPlan* plan, const ReformerConvCall* call);

// Runs the plan of this number. tensors are handles of torch's C API (AtenTensorHandle), whose ownership is taken.
// outputs receives new handles, one for each output of the plan.
REFORMER_API int32_t reformer_run_plan(int64_t plan, void* const* tensors, int64_t count, void** outputs);

// Set the functions by which plans call PyTorch's operators.
REFORMER_API void reformer_set_operator_calls(const ReformerOperatorCalls* calls);
// Set the functions by which plans and their steps open ranges of PyTorch's profiler.
REFORMER_API void reformer_set_profiler(const ReformerProfiler* profiler);

// The CPU cost model's class of the problem and its three terms, in microseconds on the nominal machine (cpu/cost.h).
REFORMER_API int32_t reformer_cost_class(const reformer::ConvProblem* problem);
REFORMER_API int32_t reformer_cost_terms(const reformer::ConvProblem* problem, const char* device, double* terms);

// Where the program of this code runs after a problem's convolution, as decided by choose_fusion() (dispatch/decide.h).
// Solvers are given as indices. The program's tensors have the problem's data type, those of channels fp32.
struct ReformerEpilogue {
  int32_t separate;
  int32_t fused;  // -1: no kernel can run the program
  int32_t is_fused;
  int32_t has_features;
  double probability;
};
// If the decision has features, also writes rows and weights of tokens * terms terms.
REFORMER_API int32_t reformer_epilogue(const reformer::ConvProblem* problem, const char* device, const int64_t* code,
                                       int64_t size, ReformerEpilogue* epilogue, int32_t* rows, float* weights);

// The sequence that a selector reads (selector/features.h). The shape is its version, the number of tokens, of terms in
// each, and of rows of the embedding matrix, depending on what the selector decides. The features are, for each of
// `count` problems, rows and weights of tokens * terms terms.
REFORMER_API void reformer_feature_shape(int32_t decides, int32_t shape[4]);
REFORMER_API int32_t reformer_features(const reformer::ConvProblem* problems, int64_t count, const char* device,
                                       int32_t* rows, float* weights);
// Features of one matrix product; if size is not 0, with the program of this code.
REFORMER_API int32_t reformer_product_features(const reformer::ConvProblem* problem, const char* device,
                                               const int64_t* code, int64_t size, int32_t* rows, float* weights);

// _check: true if the selector is valid. _set makes it decide for its architecture from now on, and copies the tensors;
// _remove undoes that.
REFORMER_API int32_t reformer_selector_check(const ReformerSelector* selector);
REFORMER_API int32_t reformer_selector_set(const ReformerSelector* selector);
REFORMER_API int32_t reformer_selector_remove(const char* arch, int32_t decides);

// Number of candidates of the selector for a device's kernels, and their logits for each of `count` problems. `isa` is
// an index of Isa (device.h) that this machine supports, or -1 for the best.
REFORMER_API int32_t reformer_selector_candidates(const char* device);
REFORMER_API int32_t reformer_selector_logits(const reformer::ConvProblem* problems, int64_t count, const char* device,
                                              int32_t isa, float* logits);

REFORMER_API int32_t reformer_set_config(const ReformerConfig* config);

// See pytorch_settings.h. Readers return 0 or 1.
REFORMER_API void reformer_set_tf32_reader(reformer::SettingReader reader);
REFORMER_API void reformer_set_deterministic_reader(reformer::SettingReader reader);
REFORMER_API int32_t reformer_allows_tf32(const char* device);

REFORMER_API void reformer_cache_counts(int64_t* hits, int64_t* misses);

// The operations of programs (program/ops.def) by their numbers.
REFORMER_API int32_t reformer_operation_count();
REFORMER_API const char* reformer_operation_name(int32_t number);
REFORMER_API int32_t reformer_operation_operands(int32_t number);

// See plan/interned.h.
REFORMER_API int64_t reformer_intern_plan(const int64_t* code, int64_t size);
REFORMER_API void reformer_release_plan(int64_t number);
REFORMER_API void reformer_interned_counts(int64_t* programs, int64_t* plans);

// GPUs (jit). An entry is a kernel; see jit/gpu.h.
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

// The table of known GPUs (hip/devices.def) and its length.
REFORMER_API const reformer::GpuSpec* reformer_gpu_specs(int32_t* count);

// Set the folder of code objects and kernel sources, instead of the package's: for tests.
REFORMER_API void reformer_gpu_kernels(const char* folder);
// Set the file of NVRTC for the case that neither torch nor the loader has it (jit/rtc.h).
REFORMER_API void reformer_gpu_nvrtc(const char* file);
REFORMER_API const char* reformer_gpu_architecture(int32_t device);
// Text form of torch's GPU of this index as a device.
REFORMER_API const char* reformer_gpu_device(int32_t device);

// Why there are no kernels for an architecture; an empty string if there are.
REFORMER_API const char* reformer_gpu_unavailable(const char* architecture);

// Runs a solver on plain dense memory as a device of this name would; GPU kernels are passed to `launcher`. For tests,
// which emulate them.
REFORMER_API int32_t reformer_run(const reformer::ConvProblem* problem, const char* device, int32_t solver, void* x,
                                  void* w, void* y, const void* bias, reformer::gpu::Launcher launcher);

REFORMER_API int32_t reformer_gpu_launch(const ReformerEntry* entry, const ReformerLaunch* launch,
                                         const void* arguments, int64_t bytes);

// Compiles a kernel as for a device without packaged code. Returns the size of the code object, which is at `code`
// until the thread's next call. `cached` becomes 1 if the cache on disk had it.
REFORMER_API int64_t reformer_gpu_compile(const ReformerEntry* entry, const char* architecture, const char** code,
                                          int32_t* cached);

// From reformer_gpu_begin_noting on, this thread's launches are recorded instead of executed, until _end_noting, which
// calls `missing` with each kernel that has no code for the architecture, and with its source's name and text; the
// strings are valid during the call. _add_compiled takes the code object that another process has compiled from it. The
// compiler is described as lines: its library, the prefix of its functions, their word for code objects, and the
// options.
using ReformerMissing = void (*)(const ReformerEntry* entry, const char* name, const char* source);
REFORMER_API void reformer_gpu_begin_noting();
REFORMER_API int32_t reformer_gpu_end_noting(const char* architecture, ReformerMissing missing);
REFORMER_API const char* reformer_gpu_compiler(const char* architecture);
REFORMER_API int32_t reformer_gpu_add_compiled(const ReformerEntry* entry, const char* architecture, const char* code,
                                               int64_t size);

// The folder of the cache on disk, or an empty string.
REFORMER_API const char* reformer_gpu_cache_folder();
