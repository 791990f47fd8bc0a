#include "layer_norm.h"

#include <optional>
#include <string>

#include "hip/gpu_model.h"
#include "jit/cache.h"
#include "set_cache.h"

namespace reformer {
namespace {

enum class Pass : uint8_t { forward, backward };

struct Key {
  LayerNormShape shape;
  Pass pass;
  bool of_input, of_parameters;
  std::string arch;

  bool operator==(const Key& other) const {
    const LayerNormShape &a = shape, &b = other.shape;
    return a.rows == b.rows && a.width == b.width && a.input == b.input && a.result == b.result &&
           a.parameters == b.parameters && pass == other.pass && of_input == other.of_input &&
           of_parameters == other.of_parameters && arch == other.arch;
  }
  uint64_t hash() const {
    uint64_t hash = uint64_t(pass) | uint64_t(of_input) << 1 | uint64_t(of_parameters) << 2;
    for (DType type : {shape.input, shape.result, shape.parameters}) hash = hash << 8 | uint64_t(type);
    for (int64_t size : {shape.rows, shape.width}) hash = (hash ^ uint64_t(size)) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
  }
};

// The kernel that follows the file; text(name) returns its source under that name.
template <class Text>
gpu::Kernel kernel(const char* what, const Text& text) {
  const std::string name = std::string("layer_norm_") + what + "_" + gpu::digest(text("")).substr(0, 16);
  return {"layer_norm", name, "0", text(name)};
}

Planned<LayerNormRun> planned(const Key& key, const Device& device) {
  const LayerNormShape& shape = key.shape;
  if (const char* why = refuse_layer_norm(shape)) return why;
  if (gpu::unavailable(device.arch)) return "there are no kernels for this GPU";
  const bool sums = key.of_parameters;
  const LayerNormPlan launches = plan_layer_norm(shape, sums, usual_units(device.arch));
  const auto main_text = [&](const std::string& name) {
    return key.pass == Pass::forward ? layer_norm_forward_text(name, shape)
                                     : layer_norm_backward_text(name, shape, key.of_input, sums);
  };
  const auto finish_text = [&](const std::string& name) { return layer_norm_finish_text(name, shape); };
  std::optional<gpu::Kernel> finish;
  if (sums) finish = kernel("finish", finish_text);
  LayerNormRun plan;
  if (sums) plan.workspace_floats = layer_norm_workspace_floats(shape, launches);
  plan.run = [shape, launches, finish, main = kernel(key.pass == Pass::forward ? "forward" : "backward", main_text)](
                 LayerNormArgs args, const gpu::Queue& queue) {
    args.rows = int(shape.rows), args.width = int(shape.width), args.parts = launches.parts;
    gpu::launch(main, launches.launch, queue, args);
    if (finish) gpu::launch(*finish, launches.finish, queue, args);
  };
  return plan;
}

const Planned<LayerNormRun>& remembered(const Key& key, const Device& device) {
  thread_local SetCache<Key, Planned<LayerNormRun>> known;
  const uint64_t hash = key.hash();
  const Planned<LayerNormRun>* const found = known.find(key, hash);
  return found ? *found : known.remember(key, hash, planned(key, device));
}

}  // namespace

const Planned<LayerNormRun>& planned_layer_norm(const LayerNormShape& shape, const Device& device) {
  return remembered({shape, Pass::forward, false, false, device.arch}, device);
}

const Planned<LayerNormRun>& planned_layer_norm_backward(const LayerNormShape& shape, bool of_input, bool of_parameters,
                                                         const Device& device) {
  return remembered({shape, Pass::backward, of_input, of_parameters, device.arch}, device);
}

}  // namespace reformer
