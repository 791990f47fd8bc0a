// Multiplies a tensor in place by a number that is also on the GPU. Usually the number is 1, and nothing else is read.
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "scale_args.h"

namespace reformer {
namespace {

template <class T, class Factor, int kCount>
DEVICE void scale(const ScaleArgs& p) {
  grid_dependency_wait();
  const float factor = to_float(*static_cast<const Factor*>(p.factor));
  if (factor == 1.0f) return;
  const long long step = static_cast<long long>(p.blocks) * kScaleThreads * kCount;
  for (long long at = (static_cast<long long>(block_x()) * kScaleThreads + thread_id()) * kCount; at < p.count;
       at += step) {
    T* const there = static_cast<T*>(p.values) + at;
    float values[kCount];
    widen<T, kCount>(load<T, kCount>(there), values);
    UNROLL
    for (float& each : values) each *= factor;
    store<T, kCount>(there, narrow<T, kCount>(values));
  }
}

}  // namespace
}  // namespace reformer

#define X(T, Factor, count)                                                                  \
  KERNEL(reformer::kScaleThreads) scale_##T##_##Factor##_##count(reformer::ScaleArgs args) { \
    reformer::grid_dependency_launch();                                                      \
    reformer::scale<reformer::T, reformer::Factor, count>(args);                             \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "scale.inc"
#endif
