// Converts a bias to the data type of the accumulators.
#pragma once

#include <vector>

#include "cpu/element.h"

namespace reformer {

template <class T>
class SumBias {
 public:
  using S = typename Element<T>::Sum;
  SumBias(const void* bias, int64_t k) : values_(bias ? size_t(k) : 0) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = Element<T>::load(static_cast<const T*>(bias)[i]);
  }
  const S* data() const { return values_.empty() ? nullptr : values_.data(); }

 private:
  std::vector<S> values_;
};

}  // namespace reformer
