// Shared by the kernels that cast many tensors and the host.
#pragma once

namespace reformer {

constexpr int kCastThreads = 256;
constexpr int kCastVector = 4;     // adjacent elements per access of a thread, if all are aligned
constexpr int kCastElements = 16;  // per thread; their loads are in flight together
constexpr int kCastBlock = kCastThreads * kCastElements;
constexpr int kCastsMost = 170;  // per launch: a kernel's arguments have at most 4 KiB

// Casts of `count` adjacent elements each. If `from` is null, zeros are written.
struct CastsArgs {
  const void* from[kCastsMost];
  void* to[kCastsMost];
  unsigned count[kCastsMost];
  int first[kCastsMost];  // index of the cast's first block; each block has kCastBlock elements
  int casts;
};
static_assert(sizeof(CastsArgs) <= 4096);

}  // namespace reformer
