// For the emulator's tests: the source and the launches of layer norm's kernels.
#include <cstring>

#include "conv/problem.cpp"
#include "hip/kernels/layer_norm_plan.h"

using namespace reformer;

static LayerNormShape shape;
static LayerNormPlan plan;
static std::string text;
static bool sums;

// A sentence, or null. types: of input, result (or its gradient) and parameters, DType's numbers.
extern "C" const char* prepare(int64_t rows, int64_t width, const uint8_t* types, bool backward, bool of_input,
                               bool of_parameters, int multiprocessors) {
  shape = {rows, width, DType(types[0]), DType(types[1]), DType(types[2])};
  if (const char* why = refuse_layer_norm(shape)) return why;
  sums = of_parameters;
  plan = plan_layer_norm(shape, sums, multiprocessors);
  text = backward ? layer_norm_backward_text("layer_norm_test", shape, of_input, of_parameters)
                  : layer_norm_forward_text("layer_norm_test", shape);
  if (sums) text += layer_norm_finish_text("layer_norm_test_finish", shape);
  return nullptr;
}

extern "C" const char* source() { return text.c_str(); }
extern "C" int64_t workspace_floats() { return sums ? layer_norm_workspace_floats(shape, plan) : 0; }
extern "C" void launches(uint32_t* first, uint32_t* finish) {
  const auto put = [](const gpu::Launch& from, uint32_t* to) {
    to[0] = from.blocks_x, to[1] = from.blocks_y, to[2] = from.blocks_z, to[3] = from.threads;
  };
  put(plan.launch, first);
  put(plan.finish, finish);
}
// tensors: input, weight, bias, grad, result, statistics, partial, gradients of weight and bias. Returns its bytes.
extern "C" int64_t arguments(void* const* tensors, float eps, void* to) {
  const auto floats = [&](int i) { return static_cast<float*>(tensors[i]); };
  const LayerNormArgs args{tensors[0], tensors[1], tensors[2], tensors[3],      tensors[4],       floats(5), floats(6),
                           tensors[7], tensors[8], eps,        int(shape.rows), int(shape.width), plan.parts};
  std::memcpy(to, &args, sizeof args);
  return sizeof args;
}
