#include "selector.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>

#include "../../solver.h"

namespace reformer {
namespace {

int32_t padded(int32_t floats) { return (floats + kPackStep - 1) / kPackStep * kPackStep; }

// Takes the tensors one by one. The first pass, without memory, only counts the floats that the second needs.
class Packer {
 public:
  Packer(const float* const* tensors, float* memory) : tensors_(tensors), memory_(memory) {}

  size_t floats() const { return size_t(used_); }

  const float* copy(int64_t count) {
    const float* from = *tensors_++;
    float* to = take(count);
    if (to) std::copy(from, from + count, to);
    return to;
  }

  PackedLinear linear(int32_t inputs, int32_t outputs) {
    PackedLinear layer{nullptr, nullptr, inputs, outputs, padded(outputs)};
    const float* from = *tensors_++;
    if (float* to = take(int64_t{inputs} * layer.step)) {
      std::fill(to, to + int64_t{inputs} * layer.step, 0.0f);
      for (int32_t out = 0; out < outputs; ++out)
        for (int32_t in = 0; in < inputs; ++in) to[int64_t{in} * layer.step + out] = from[int64_t{out} * inputs + in];
      layer.matrix = to;
    }
    layer.bias = copy(outputs);
    return layer;
  }

 private:
  float* take(int64_t count) {
    float* place = memory_ ? memory_ + used_ : nullptr;
    used_ += (count + kPackStep - 1) / kPackStep * kPackStep;
    return place;
  }

  const float* const* tensors_;
  float* memory_;
  int64_t used_ = 0;
};

PackedSelector pack(const SelectorShape& shape, int32_t candidates, Packer& packer) {
  PackedSelector packed{};
  packed.width = shape.width;
  packed.hidden = shape.hidden;
  packed.blocks = shape.blocks;
  packed.embedding = packer.copy(int64_t{shape.rows} * shape.width);
  packed.device = packer.copy(shape.width);
  for (int32_t i = 0; i < shape.blocks; ++i) {
    PackedBlock& block = packed.block[i];
    block.taps = packer.copy(3 * shape.width);
    block.qkv = packer.linear(shape.width, 3 * shape.width);
    block.up = packer.linear(shape.width, shape.hidden);
    block.down = packer.linear(shape.hidden, shape.width);
  }
  packed.head = packer.linear(shape.width, candidates);
  return packed;
}

void check_multiple(const char* what, int32_t value, int32_t most) {
  if (value < kPackStep || value > most || value % kPackStep)
    throw std::invalid_argument("a selector's " + std::string(what) + " must be a multiple of " +
                                std::to_string(kPackStep) + " up to " + std::to_string(most) + ", got " +
                                std::to_string(value));
}

void check_between(const char* what, size_t value, int32_t most) {
  if (value < 1 || value > size_t(most))
    throw std::invalid_argument("a selector has 1 to " + std::to_string(most) + " " + what + ", got " +
                                std::to_string(value));
}

void check(const SelectorShape& shape, const std::vector<std::string>& candidates) {
  if (shape.rows != feature_rows())
    throw std::invalid_argument("a selector's embedding must have " + std::to_string(feature_rows()) +
                                " rows, as the features have, got " + std::to_string(shape.rows));
  check_multiple("width", shape.width, kMaxWidth);
  check_multiple("hidden width", shape.hidden, kMaxHidden);
  check_between("blocks", size_t(std::max(shape.blocks, 0)), kMaxBlocks);
  check_between("candidates", candidates.size(), kMaxCandidates);
  for (auto name = candidates.begin(); name != candidates.end(); ++name)
    if (std::find(candidates.begin(), name, *name) != name)
      throw std::invalid_argument("the selector's candidate \"" + *name + "\" is named twice");
}

}  // namespace

Selector::Selector(const SelectorShape& shape, std::vector<std::string> candidates, const float* const* tensors)
    : shape_(shape), candidates_(std::move(candidates)) {
  check(shape, candidates_);
  const auto count = static_cast<int32_t>(candidates_.size());
  Packer counting(tensors, nullptr);
  pack(shape, count, counting);
  memory_.reset(static_cast<float*>(std::aligned_alloc(64, counting.floats() * sizeof(float))));
  if (!memory_) throw std::bad_alloc();
  Packer packing(tensors, memory_.get());
  packed_ = pack(shape, count, packing);

  for (const Solver* solver : solvers()) {
    const auto found = std::find(candidates_.begin(), candidates_.end(), solver->name());
    candidate_of_.push_back(found == candidates_.end() ? -1 : int32_t(found - candidates_.begin()));
  }
}

}  // namespace reformer
