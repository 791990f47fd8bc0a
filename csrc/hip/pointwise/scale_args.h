// Shared by the scaling kernels and the host.
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
