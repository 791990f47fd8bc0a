// SequenceClassifier for Python. Tensors come as addresses: torch's own headers would take most of the compiler's time.
#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "sequence_classifier.h"

namespace {

using reformer::SequenceClassifier;

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

std::unique_ptr<SequenceClassifier> made(int32_t words, int32_t longest, int32_t width, int32_t hidden, int32_t blocks,
                                         int32_t classes, const pybind11::list& addresses) {
  std::vector<const float*> tensors;
  for (const auto& address : addresses) tensors.push_back(pointer<const float>(address.cast<uintptr_t>()));
  const reformer::SequenceClassifierShape shape{words, longest, width, hidden, blocks, classes};
  return std::make_unique<SequenceClassifier>(shape, tensors.data());
}

void logits(SequenceClassifier& classifier, uintptr_t words, int64_t length, int32_t isa, uintptr_t out) {
  classifier.logits(pointer<const int64_t>(words), length, pointer<float>(out), reformer::isa_of(isa));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pybind11::class_<SequenceClassifier>(module, "SequenceClassifier").def(pybind11::init(&made)).def("logits", &logits);
}
