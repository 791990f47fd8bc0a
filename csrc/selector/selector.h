// A trained selector, which scores the kernels for a problem. Weights have PyTorch's layout and are packed once; after
// that logits() allocates nothing, takes no lock and may be called by several threads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "infer.h"
#include "packing.h"

namespace reformer {

constexpr int32_t kMaxCandidates = 256;
// Candidates of a selector of epilogues.
constexpr size_t kSeparate = 0, kFused = 1;
constexpr const char* kEpilogueWays[] = {"separate", "fused"};

// kernels: which kernel computes a problem. epilogues: whether a program after it runs in the convolution's kernel or
// in one of its own. products: which kernel computes a matrix product and the program after it; of PyTorch's product
// the program is a kernel of its own.
enum class Decides : int8_t { kernels, epilogues, products };
constexpr int32_t kDecisions = 3;

int32_t feature_rows(Decides decides);  // rows of the embedding matrix

struct SelectorShape {
  int32_t rows;  // feature_rows()
  int32_t width, hidden, blocks;
};

// Number of tensors of a selector with so many blocks. Their order is that of Reformer.state_dict(): embedding [rows,
// width], device [1, width]; the blocks' tensors (packing.h); head.weight [candidates, width], head.bias.
constexpr int32_t selector_tensors(int32_t blocks) { return 4 + 7 * blocks; }

class Selector {
 public:
  // Copies the tensors. candidates: names of head.weight's rows. asked: names of those that callers ask for: the
  // solvers, or kEpilogueWays. Throws std::invalid_argument.
  Selector(Decides decides, const SelectorShape& shape, std::vector<std::string> candidates,
           const std::vector<std::string>& asked, const float* const* tensors);

  const SelectorShape& shape() const { return shape_; }
  const std::vector<std::string>& candidates() const { return candidates_; }

  // The candidate named asked[index], or -1 if the weights don't have it.
  int32_t candidate_of(size_t index) const { return candidate_of_[index]; }

  // Writes one logit for each candidate. Instruction sets differ only in rounding.
  void logits(const Features& features, float* out, Isa isa = cpu_isa()) const { infer(packed_, features, isa, out); }

 private:
  SelectorShape shape_;
  std::vector<std::string> candidates_;
  std::vector<int32_t> candidate_of_;
  FloatMemory memory_;
  PackedSelector packed_{};
};

}  // namespace reformer
