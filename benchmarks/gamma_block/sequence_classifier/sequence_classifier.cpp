#include "sequence_classifier.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "cpu/gemm/kernel.h"

#define REFORMER_ISA_BODY "sequence_classifier_body.h"
#include "cpu/simd/foreach_isa.h"

namespace reformer {
namespace {

constexpr int32_t kMaxWords = 1 << 24, kMaxLength = 1 << 16, kMaxClasses = 1 << 16;

void check(const SequenceClassifierShape& shape) {
  const char* whose = "a sequence classifier";
  check_between(whose, "words", shape.words, kMaxWords);
  check_between(whose, "positions", shape.longest, kMaxLength);
  check_between(whose, "classes", shape.classes, kMaxClasses);
  check_blocks(whose, shape.width, shape.hidden, shape.blocks);
}

}  // namespace

SequenceClassifier::SequenceClassifier(const SequenceClassifierShape& shape, const float* const* tensors)
    : shape_(shape) {
  check(shape);
  memory_ = pack_into_memory(tensors, [&](Packer& packer) {
    packed_.positions = packer.copy(int64_t{shape.longest} * shape.width);
    packed_.embedding = packer.copy(int64_t{shape.words} * shape.width);
    packed_.blocks = packer.blocks(shape.width, shape.hidden, shape.blocks);
    packed_.head = packer.linear(shape.width, shape.classes);
  });
  scratch_ =
      aligned_floats(int64_t{shape.longest} * shape.width + gamma_scratch(shape.width, shape.hidden, shape.longest));
}

void SequenceClassifier::logits(const int64_t* words, int64_t length, float* out, Isa isa) {
  check_between("a sequence", "words", length, shape_.longest);
  for (const int64_t* word = words; word < words + length; ++word)
    if (*word < 0 || *word >= shape_.words)
      throw std::invalid_argument("a word must be 0 to " + std::to_string(shape_.words - 1) + ", got " +
                                  std::to_string(*word));
  REFORMER_BY_ISA(isa, classify)
  (packed_, words, int32_t(length), gemm_kernels<float>(isa), scratch_.get(), out);
}

}  // namespace reformer
