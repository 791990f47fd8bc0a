// A trained selector: scores the kernels for a problem. Weights come as PyTorch has them and are packed once; logits()
// then allocates nothing, takes no lock and may be called by any number of threads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "infer.h"
#include "packing.h"

namespace reformer {

constexpr int32_t kMaxCandidates = 256;
// The candidates of a selector of epilogues.
constexpr size_t kSeparate = 0, kFused = 1;
constexpr const char* kEpilogueWays[] = {"separate", "fused"};

// Which kernel computes a problem; or whether a program behind it is run by the convolution's kernel or by one of its
// own.
enum class Decides : int8_t { kernels, epilogues };

struct SelectorShape {
  int32_t rows;  // of the embedding matrix: feature_rows(), or epilogue_feature_rows()
  int32_t width, hidden, blocks;
};

// How many tensors a selector of so many blocks has, and the order in which they are given, which is that of
// Reformer.state_dict(): embedding [rows, width], device [1, width]; the blocks' (packing.h); head.weight
// [candidates, width], head.bias.
constexpr int32_t selector_tensors(int32_t blocks) { return 4 + 7 * blocks; }

class Selector {
 public:
  // Copies the tensors. candidates: the names of head.weight's rows. asked: the names of those that may be asked for:
  // the solvers, or the ways of kEpilogueWays. Throws std::invalid_argument.
  Selector(Decides decides, const SelectorShape& shape, std::vector<std::string> candidates,
           const std::vector<std::string>& asked, const float* const* tensors);

  const SelectorShape& shape() const { return shape_; }
  const std::vector<std::string>& candidates() const { return candidates_; }

  // The candidate that is asked[index], or -1 if the weights don't know it.
  int32_t candidate_of(size_t index) const { return candidate_of_[index]; }

  // Writes one logit a candidate. Instruction sets differ in rounding only.
  void logits(const Features& features, float* out, Isa isa = cpu_isa()) const { infer(packed_, features, isa, out); }

 private:
  SelectorShape shape_;
  std::vector<std::string> candidates_;
  std::vector<int32_t> candidate_of_;
  FloatMemory memory_;
  PackedSelector packed_{};
};

}  // namespace reformer
