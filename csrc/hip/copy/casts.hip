// Casts many tensors at once: a network's parameters, or their gradients. Most tensors are small, so a block handles
// few elements, and looks up which cast they belong to.
#include "../device/grid_dependency.h"
#include "../device/types.h"
#include "casts_args.h"

namespace reformer {
namespace {

// The last cast whose first block is at or before this one.
DEVICE int cast_of(const CastsArgs& p, int block) {
  int found = 0;
  UNROLL
  for (int step = 128; step > 0; step /= 2)
    if (found + step < p.casts && p.first[found + step] <= block) found += step;
  return found;
}

// Casts elements `begin` to `end` - 1; those that don't fill a vector are cast one by one.
template <class From, class To, int kCount>
DEVICE void cast_block(const From* from, To* to, unsigned begin, unsigned end) {
  constexpr int kVectors = kCastElements / kCount;
  Pack<From, kCount> some[kVectors];
  UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const unsigned at = begin + (i * kCastThreads + thread_id()) * kCount;
    some[i] = zero_pack<From, kCount>();
    if (from && at + kCount <= end) some[i] = load<From, kCount>(from + at);
  }
  UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const unsigned at = begin + (i * kCastThreads + thread_id()) * kCount;
    float values[kCount];
    widen<From, kCount>(some[i], values);
    if (at + kCount <= end) store<To, kCount>(to + at, narrow<To, kCount>(values));
  }
  const unsigned rest = end - end % kCount + thread_id();
  if (kCount > 1 && rest < end) from_float(from ? to_float(from[rest]) : 0.0f, to[rest]);
}

template <int kBytes>
DEVICE bool is_aligned(const void* address) {
  return reinterpret_cast<unsigned long long>(address) % kBytes == 0;
}

template <class From, class To>
DEVICE void cast(const CastsArgs& p) {
  const int own = cast_of(p, block_x());
  const From* const from = static_cast<const From*>(p.from[own]);
  To* const to = static_cast<To*>(p.to[own]);
  const unsigned count = p.count[own], begin = unsigned(block_x() - p.first[own]) * kCastBlock;
  const unsigned end = begin + kCastBlock < count ? begin + kCastBlock : count;
  grid_dependency_wait();
  if (is_aligned<kCastVector * sizeof(From)>(from) && is_aligned<kCastVector * sizeof(To)>(to))
    cast_block<From, To, kCastVector>(from, to, begin, end);
  else
    cast_block<From, To, 1>(from, to, begin, end);
}

}  // namespace
}  // namespace reformer

#define X(From, To)                                                              \
  KERNEL(reformer::kCastThreads) casts_##From##_##To(reformer::CastsArgs args) { \
    reformer::grid_dependency_launch();                                          \
    reformer::cast<reformer::From, reformer::To>(args);                          \
  }
#ifdef REFORMER_ENTRY
REFORMER_APPLY(X, REFORMER_ENTRY)
#else
#include "casts.inc"
#endif
