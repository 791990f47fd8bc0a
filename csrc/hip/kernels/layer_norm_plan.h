// Which instances of hip/kernels/layer_norm.hip compute a layer norm, and how they are launched: pure functions,
// without a GPU, for the operators and tests.
#pragma once

#include <algorithm>
#include <string>

#include "conv/problem.h"
#include "jit/gpu.h"
#include "layer_norm.h"

namespace reformer {

struct LayerNormShape {
  int64_t rows, width;
  DType input, result, parameters;  // backward: result is its gradient's type
};

struct LayerNormPlan {
  int count, vectors, lanes;  // elements of a group, groups of a thread, threads of a row: see layer_norm.hip
  int occupancy;              // blocks that the registers have to be enough for in the backward, or 0
  int parts;
  gpu::Launch launch, finish;
};

// The most elements that a thread has in registers: fewer if rows are read by groups of less than 8.
inline int layer_norm_most(int64_t width) { return width % 8 ? 24 : 32; }

// Whether kernels have such rows.
inline bool takes_layer_norm(int64_t width) { return width > 0 && width <= 32 * layer_norm_most(width); }

// Null, or a sentence that says why not.
inline const char* refuse_layer_norm(const LayerNormShape& of) {
  for (DType type : {of.input, of.result, of.parameters})
    if (type == DType::fp64) return "it computes in fp32";
  if (of.rows < 1 || of.width < 1) return "there is nothing to compute";
  if (of.rows > INT32_MAX - (1 << 24)) return "there are too many rows";
  return takes_layer_norm(of.width) ? nullptr : "its rows are too long";
}

// sums: it adds up over rows, too. multiprocessors: of the GPU, or about as many.
inline LayerNormPlan plan_layer_norm(const LayerNormShape& of, bool sums, int multiprocessors) {
  LayerNormPlan plan{8, 0, 0, 0, 0, {}, {}};
  while (of.width % plan.count) plan.count /= 2;
  const int groups = int(of.width) / plan.count;
  // Among the numbers of lanes that read at least 32 adjacent elements, or the row, at once: the fewest idle threads,
  // then the fewest elements a thread.
  int64_t least = INT64_MAX;
  for (int lanes = 32; lanes; lanes /= 2) {
    if (lanes * plan.count < 32 && lanes < groups) continue;
    const int vectors = (groups + lanes - 1) / lanes;
    if (vectors * plan.count <= layer_norm_most(of.width) && vectors * lanes < least)
      least = vectors * lanes, plan.lanes = lanes, plan.vectors = vectors;
  }
  // An occupancy of three blocks leaves 168 registers a thread. With more elements, idle threads, or wider elements of
  // the next row, some would spill.
  const bool halves = element_size(of.input) == 2 && element_size(of.result) == 2;
  plan.occupancy = halves && plan.vectors <= 3 && of.width == plan.vectors * plan.lanes * 8 ? 3 : 0;
  const int64_t at_once = kLayerNormThreads / plan.lanes, steps = (of.rows + at_once - 1) / at_once;
  // The parts of a sum have to be few compared with the rows, and the blocks as many as run at once.
  const int64_t most = multiprocessors * (sums ? 4 : 16);
  plan.parts = int(std::min<int64_t>(most, sums ? (steps + 3) / 4 : (steps + 1) / 2));
  plan.launch.blocks_x = uint32_t(plan.parts);
  plan.finish.blocks_x = uint32_t((of.width + kLayerNormFinishColumns - 1) / kLayerNormFinishColumns);
  plan.finish.blocks_y = 2;
  plan.launch.threads = plan.finish.threads = kLayerNormThreads;
  plan.launch.pdl = plan.finish.pdl = true;
  return plan;
}

inline int64_t layer_norm_workspace_floats(const LayerNormShape& of, const LayerNormPlan& plan) {
  return 2 * of.width * plan.parts;
}

inline const char* kernel_type(DType type) {
  constexpr const char* kNames[] = {"fp32", "fp64", "fp16", "bf16"};
  return kNames[size_t(type)];
}

inline std::string layer_norm_arguments(const LayerNormShape& of, const LayerNormPlan& plan) {
  std::string text;
  for (DType type : {of.input, of.result, of.parameters}) text += std::string(kernel_type(type)) + ", ";
  for (int number : {int(of.width), plan.count, plan.vectors}) text += std::to_string(number) + ", ";
  return text + std::to_string(plan.lanes);
}

// The text that follows layer_norm.hip: a kernel of this name.
inline std::string layer_norm_forward_text(const std::string& name, const LayerNormShape& of) {
  const LayerNormPlan plan = plan_layer_norm(of, false, 1);
  return "REFORMER_LAYER_NORM(" + name + ", 0, forward, " + layer_norm_arguments(of, plan) + ")\n";
}
inline std::string layer_norm_backward_text(const std::string& name, const LayerNormShape& of, bool of_input,
                                            bool of_parameters) {
  const LayerNormPlan plan = plan_layer_norm(of, of_parameters, 1);
  const auto word = [](bool is) { return is ? ", true" : ", false"; };
  return "REFORMER_LAYER_NORM(" + name + ", " + std::to_string(plan.occupancy) + ", backward, " +
         layer_norm_arguments(of, plan) + word(of_input) + word(of_parameters) + ")\n";
}
inline std::string layer_norm_finish_text(const std::string& name, const LayerNormShape& of) {
  return "REFORMER_LAYER_NORM(" + name + ", 0, finish, " + kernel_type(of.parameters) + (of.width % 4 ? ", 1" : ", 4") +
         ")\n";
}

}  // namespace reformer
