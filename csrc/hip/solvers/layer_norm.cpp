#include "layer_norm.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "hip/gpu_model.h"
#include "jit/cache.h"

namespace reformer {
namespace {

// A kernel that follows the file. Never freed: entries point into it.
struct Instance {
  std::string name, text;
};

// The kernel for a shape and options; text(name) returns its source under that name.
gpu::Entry instance(const char* what, const LayerNormShape& shape, int options,
                    const std::function<std::string(const std::string&)>& text) {
  using Key = std::tuple<std::string, int64_t, DType, DType, DType, int>;
  static std::mutex mutex;
  static auto& known = *new std::map<Key, std::unique_ptr<Instance>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Instance>& made = known[{what, shape.width, shape.input, shape.result, shape.parameters, options}];
  if (!made) {
    const std::string name = std::string("layer_norm_") + what + "_" + gpu::digest(text("")).substr(0, 16);
    made = std::make_unique<Instance>(Instance{name, text(name)});
  }
  return {"layer_norm", made->name.c_str(), "0", made->text.c_str()};
}

// Adds what the plan says.
LayerNormArgs completed(LayerNormArgs args, const LayerNormShape& shape, const LayerNormPlan& plan) {
  args.rows = int(shape.rows), args.width = int(shape.width), args.parts = plan.parts;
  return args;
}

}  // namespace

const char* refuse_layer_norm(const LayerNormShape& shape, const Device& device) {
  if (const char* why = refuse_layer_norm(shape)) return why;
  return gpu::unavailable(device.arch) ? "there are no kernels for this GPU" : nullptr;
}

int64_t layer_norm_workspace_floats(const LayerNormShape& shape, const Device& device) {
  return layer_norm_workspace_floats(shape, plan_layer_norm(shape, true, usual_units(device.arch)));
}

void run_layer_norm(const LayerNormShape& shape, LayerNormArgs args, const Device& device, const gpu::Queue& queue) {
  const LayerNormPlan plan = plan_layer_norm(shape, false, usual_units(device.arch));
  const auto text = [&](const std::string& name) { return layer_norm_forward_text(name, shape); };
  gpu::launch(instance("forward", shape, 0, text), plan.launch, queue, completed(args, shape, plan));
}

void run_layer_norm_backward(const LayerNormShape& shape, LayerNormArgs args, const Device& device,
                             const gpu::Queue& queue) {
  const bool sums = args.of_weight || args.of_bias;
  const LayerNormPlan plan = plan_layer_norm(shape, sums, usual_units(device.arch));
  args = completed(args, shape, plan);
  const bool of_input = args.result;
  const auto text = [&](const std::string& name) { return layer_norm_backward_text(name, shape, of_input, sums); };
  gpu::launch(instance("backward", shape, of_input + 2 * sums, text), plan.launch, queue, args);
  const auto finish = [&](const std::string& name) { return layer_norm_finish_text(name, shape); };
  if (sums) gpu::launch(instance("finish", shape, 0, finish), plan.finish, queue, args);
}

}  // namespace reformer
