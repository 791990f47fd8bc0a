// What the scaling kernels and their host share.
#pragma once

namespace reformer {

constexpr int kScaleThreads = 256;

// values[i] *= factor[0].
struct ScaleArgs {
  const void* factor;
  void* values;
  long long count;
  int blocks;
};

}  // namespace reformer
