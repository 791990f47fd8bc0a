// Shared by the kernels that cast many tensors and their host.
#pragma once

namespace reformer {

constexpr int kCastThreads = 256;
constexpr int kCastVector = 4;     // adjacent elements that a thread has at once, where all are aligned
constexpr int kCastElements = 16;  // of a thread, whose loads are in flight at once
constexpr int kCastBlock = kCastThreads * kCastElements;
constexpr int kCastsMost = 170;  // of a launch: a kernel's arguments have at most 4 KiB

// Casts of `count` adjacent elements each, or, where `from` is null, as many zeros.
struct CastsArgs {
  const void* from[kCastsMost];
  void* to[kCastsMost];
  unsigned count[kCastsMost];
  int first[kCastsMost];  // the first of its blocks, each of which has kCastBlock elements
  int casts;
};
static_assert(sizeof(CastsArgs) <= 4096);

}  // namespace reformer
