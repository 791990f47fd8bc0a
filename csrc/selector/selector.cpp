#include "selector.h"

#include <algorithm>
#include <stdexcept>

namespace reformer {
namespace {

void check(Decides decides, const SelectorShape& shape, const std::vector<std::string>& candidates) {
  const int32_t rows = feature_rows(decides);
  if (shape.rows != rows)
    throw std::invalid_argument("a selector's embedding must have " + std::to_string(rows) +
                                " rows, as the features have, got " + std::to_string(shape.rows));
  check_blocks("a selector", shape.width, shape.hidden, shape.blocks);
  check_between("a selector", "candidates", int64_t(candidates.size()), kMaxCandidates);
  for (auto name = candidates.begin(); name != candidates.end(); ++name)
    if (std::find(candidates.begin(), name, *name) != name)
      throw std::invalid_argument("the selector's candidate \"" + *name + "\" is named twice");
}

}  // namespace

int32_t feature_rows(Decides decides) {
  switch (decides) {
    case Decides::kernels: return feature_rows();
    case Decides::epilogues: return epilogue_feature_rows();
    case Decides::products: break;
  }
  return product_feature_rows();
}

Selector::Selector(Decides decides, const SelectorShape& shape, std::vector<std::string> candidates,
                   const std::vector<std::string>& asked, const float* const* tensors)
    : shape_(shape), candidates_(std::move(candidates)) {
  check(decides, shape, candidates_);
  memory_ = pack_into_memory(tensors, [&](Packer& packer) {
    packed_.embedding = packer.copy(int64_t{shape.rows} * shape.width);
    packed_.device = packer.copy(shape.width);
    packed_.blocks = packer.blocks(shape.width, shape.hidden, shape.blocks);
    packed_.head = packer.linear(shape.width, int32_t(candidates_.size()));
  });

  for (const std::string& name : asked) {
    const auto found = std::find(candidates_.begin(), candidates_.end(), name);
    candidate_of_.push_back(found == candidates_.end() ? -1 : int32_t(found - candidates_.begin()));
  }
}

}  // namespace reformer
