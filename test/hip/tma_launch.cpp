// tma_gemm_launch.h and tma_depthwise_launch.h as C functions, for Python: tests by the emulator.
#include <cstring>
#include <stdexcept>
#include <string>

#include "../emulator/emulated_tensor_map.h"
#include "hip/depthwise/tma_depthwise_launch.h"
#include "hip/tma_gemm/tma_program_launch.h"
#include "plan_program.h"

using namespace reformer;

// Memory for the partial results of reductions, which stays until the next program.
template <class Kernel>
static void* place_of_parts(const Kernel& kernel) {
  static std::vector<float> partial;
  partial.assign(size_t(kernel.workspace_bytes() / 4), std::numeric_limits<float>::quiet_NaN());
  return partial.data();
}

TensorMap gpu::tensor_map(const void* tensor, std::initializer_list<int64_t> sizes,
                          std::initializer_list<int32_t> box) {
  return emulator::encode(tensor, sizes, box);
}

TensorMap gpu::windows_map(const void* images, const Windows& windows, int32_t pixels) {
  const auto &w = windows.w, &h = windows.h;
  return emulator::encode_windows(images, {windows.channels, w.size, h.size, windows.images},
                                  {{w.pitch * 2, h.pitch * 2, windows.image_pitch * 2},
                                   {w.first, h.first},
                                   {w.end(), h.end()},
                                   {w.step, h.step},
                                   pixels});
}

extern "C" {

// Makes the TensorMap of a matrix, of which boxes of so many lines are copied.
void matrix_map(const void* matrix, int lines, int elements, int box_lines, void* to) {
  const TensorMap map = gpu::tensor_map(matrix, {elements, lines}, {64, box_lines});
  memcpy(to, &map, sizeof(map));
}

// The same of windows. numbers: channels, then of w and of h: pixels, where the first window begins, how many there are
// and their step; images, pixels of a box. Returns why there is none, or null.
const char* make_windows_map(const void* images, const int32_t* numbers, void* to) {
  const auto axis = [&](int i, int64_t pitch) {
    const int32_t* const of = numbers + 1 + 4 * i;
    return gpu::Windows::Axis{of[0], pitch, of[1], of[2], of[3]};
  };
  const int64_t channels = numbers[0], line = channels * numbers[1];
  const gpu::Windows windows{numbers[0], axis(0, channels), axis(1, line), numbers[9], line * numbers[5]};
  static std::string refusal;
  try {
    const TensorMap map = gpu::windows_map(images, windows, numbers[10]);
    memcpy(to, &map, sizeof(map));
    return nullptr;
  } catch (const std::runtime_error& error) {
    refusal = error.what();
    return refusal.c_str();
  }
}

int gemm_kernel_count() { return int(tma_gemm_kernels().size()); }
const char* gemm_kernel_name(int i) { return tma_gemm_kernels()[size_t(i)].entry.name; }
const char* gemm_kernel_file(int i) { return tma_gemm_kernels()[size_t(i)].entry.file; }
const char* gemm_kernel_arguments(int i) { return tma_gemm_kernels()[size_t(i)].entry.arguments; }
int gemm_args_bytes(int i) { return int(tma_gemm_kernels()[size_t(i)].args_bytes()); }
int finish_args_bytes() { return int(sizeof(ImplicitGemmFinishArgs)); }
const char* finish_name(int dtype) { return implicit_gemm_finish(static_cast<DType>(dtype))->entry.name; }
const char* finish_arguments(int dtype) { return implicit_gemm_finish(static_cast<DType>(dtype))->entry.arguments; }

// shared: a TmaShared. row_blocks: at most one for each tile of rows. pointers: x, y, filter, bias, result, workspace.
// numbers: blocks x, y, z, threads, shared bytes, cluster; the same of the finish; workspace bytes, whether the second
// operand is resident.
const char* plan_gemm(const int32_t* problem, int kernel, int shared, int row_blocks, int splits, void* const* pointers,
                      void* args, void* finish_args, int64_t* numbers) {
  const ConvProblem p = problem_of(problem);
  const TmaGemmKernel& of = tma_gemm_kernels()[size_t(kernel)];
  if (const char* sentence = unsupported_by_tma_gemm(p)) return sentence;
  if (!of.computes(p)) return "the kernel is for other problems";
  TmaGemmConfig plan;
  row_blocks =
      std::min(row_blocks, tma_gemm_sizes(p).row_tiles(of.tile.rows, shared == int(TmaShared::kColumns) ? 2 : 1));
  configure_tma_gemm(p, of, {static_cast<TmaShared>(shared), row_blocks, splits}, plan);
  bind(plan, of, pointers[0], pointers[1], pointers[2], pointers[3], pointers[4], pointers[5]);
  memcpy(args, &plan.args, of.args_bytes());
  memcpy(finish_args, &plan.finish_args, sizeof(plan.finish_args));
  append(numbers, plan.launch);
  append(numbers, plan.finish_launch);
  *numbers++ = plan.workspace_bytes;
  *numbers++ = plan.args.b_resident;
  return nullptr;
}

// A program in the kernel. tensors: x (or y, in an input gradient) and the filter. Returns a sentence, or null.
const char* plan_gemm_program(const int32_t* problem, const void* const* tensors, const GivenProgram* given, int kernel,
                              int shared, int row_blocks) {
  const ConvProblem p = problem_of(problem);
  const auto start = [&](const ProgramCall& call) {
    const TmaGemmKernel of = tma_gemm_kernels()[size_t(kernel)].with(tma_epilogue(tma_tensors(call)));
    TmaGemmConfig plan;
    const int clusters = shared == int(TmaShared::kColumns) ? 2 : 1;
    row_blocks = std::min(row_blocks, tma_gemm_sizes(p).row_tiles(of.tile.rows, clusters));
    configure_tma_gemm(p, of, {static_cast<TmaShared>(shared), row_blocks, 1}, plan);
    const TmaGemmProgram program(of, plan, call);
    program.launch(keeps_what_is_started, tensors[0], tensors[1], call, place_of_parts(program));
  };
  return plan_program(*given, p, {2, Reduces::result}, start);
}

int depthwise_args_bytes() { return int(sizeof(TmaDepthwiseArgs)); }
// Null if there is none.
const char* depthwise_name(const int32_t* problem) {
  const TmaDepthwiseKernel* kernel = tma_depthwise_kernel(problem_of(problem));
  return kernel ? kernel->entry.name : nullptr;
}
const char* depthwise_arguments(const int32_t* problem) {
  return tma_depthwise_kernel(problem_of(problem))->entry.arguments;
}

// Fills `to` with tiles (strips across and down, rows, images), at most `most` of them, and returns how many.
int depthwise_tiles(const int32_t* problem, int most, int32_t* to) {
  int count = 0;
  for (const TmaDepthwiseTile& tile : tma_depthwise_tiles(problem_of(problem))) {
    if (count == most) break;
    for (const int32_t number : {tile.across, tile.down, tile.rows, tile.images}) *to++ = number;
    ++count;
  }
  return count;
}

// pointers: x, y, filter, bias, workspace. numbers: blocks x, y, z, threads, shared bytes, cluster; workspace bytes,
// all tiles, tiles in shared memory.
const char* plan_depthwise(const int32_t* problem, const int32_t* tile, int multiprocessors, void* const* pointers,
                           void* args, int64_t* numbers) {
  const ConvProblem p = problem_of(problem);
  if (const char* sentence = unsupported_by_tma_depthwise(p)) return sentence;
  TmaDepthwiseConfig plan;
  if (!configure_tma_depthwise(p, {tile[0], tile[1], tile[2], tile[3]}, multiprocessors, plan))
    return "the tile doesn't fit";
  bind(plan, p, pointers[0], pointers[1], pointers[2], pointers[3], pointers[4]);
  memcpy(args, &plan.args, sizeof(plan.args));
  append(numbers, plan.launch);
  *numbers++ = plan.workspace_bytes;
  *numbers++ = plan.args.tiles;
  *numbers++ = plan.args.stages;
  return nullptr;
}

// The same with a program, as plan_gemm_program().
const char* plan_depthwise_program(const int32_t* problem, const void* const* tensors, const GivenProgram* given,
                                   const int32_t* tile, int multiprocessors) {
  const ConvProblem p = problem_of(problem);
  TmaDepthwiseConfig plan;
  if (!configure_tma_depthwise(p, {tile[0], tile[1], tile[2], tile[3]}, multiprocessors, plan))
    return "the tile doesn't fit";
  const auto start = [&](const ProgramCall& call) {
    const KernelWithProgram kernel(tma_depthwise_kernel(p)->entry, call, plan.args.blocks);
    bind(plan, p, const_cast<void*>(tensors[0]), kernel.result_of(call), tensors[1], nullptr, nullptr);
    kernel.launch(plan.launch, keeps_what_is_started, plan.args, call, place_of_parts(kernel));
  };
  return plan_program(*given, p, {2, Reduces::anything, false}, start);
}
}
