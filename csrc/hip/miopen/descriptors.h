// A convolution problem as MIOpen's descriptors.
#pragma once

#include "api.h"
#include "conv/problem.h"

namespace reformer::miopen {

// Exception: a call of MIOpen failed.
struct Failure {
  const char* call;  // "miopenConvolutionForwardImmediate"
  Status status;
  bool is_of_problem = true;  // the failure concerns this problem, not everything that the thread does
};

// Throws Failure unless the status is success.
void check(Status status, const char* call);

// Owns one of MIOpen's descriptors.
template <class Descriptor>
class Owned {
 public:
  Owned(Status (*create)(Descriptor*), Status (*destroy)(Descriptor), const char* call) : destroy_(destroy) {
    check(create(&descriptor_), call);
  }
  ~Owned() { destroy_(descriptor_); }
  Owned(const Owned&) = delete;
  Descriptor get() const { return descriptor_; }

 private:
  Status (*const destroy_)(Descriptor);
  Descriptor descriptor_ = nullptr;
};

// Permutes values of the tensors (x, w, y) to the order of MIOpen's functions: two operands and the result.
template <class T>
struct InOrder {
  T first, second, result;
};
template <class T>
InOrder<T> in_order(Direction direction, T x, T w, T y) {
  switch (direction) {
    case Direction::forward: return {w, x, y};
    case Direction::input_grad: return {y, w, x};
    case Direction::weight_grad: break;
  }
  return {y, x, w};
}

// The descriptors of a problem. Immutable; threads may share them.
class Descriptors {
 public:
  // deterministic: MIOpen's solvers may only apply if their results repeat bit for bit. Throws Failure.
  Descriptors(const Api& api, const ConvProblem& problem, bool deterministic);

  const InOrder<TensorDescriptor>& tensors() const { return tensors_; }
  ConvDescriptor conv() const { return conv_.get(); }

 private:
  const Owned<TensorDescriptor> x_, w_, y_;
  const Owned<ConvDescriptor> conv_;
  const InOrder<TensorDescriptor> tensors_;
};

}  // namespace reformer::miopen
