// A kernel for tests of the runtime: y = factor * x, laid out as those of csrc/hip are.
#include "../device/types.h"
#include "scale.h"

namespace reformer {
namespace {

template <class T, int kFactor>
DEVICE void scale(const ScaleArgs& p) {
  const int i = block_x() * 256 + thread_id();
  if (i < p.count) from_float(kFactor * to_float(static_cast<const T*>(p.x)[i]), static_cast<T*>(p.y)[i]);
}

}  // namespace

#define X(T, FACTOR) \
  KERNEL(256) scale_##T##_##FACTOR(const ScaleArgs p) { scale<T, FACTOR>(p); }
#ifdef REFORMER_ENTRY
#define ONE(...) X(__VA_ARGS__)
ONE(REFORMER_ENTRY)
#else
#include "scale.inc"
#endif

}  // namespace reformer
