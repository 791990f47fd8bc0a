// Shared by the embedding kernels and the host.
#pragma once

namespace reformer {

constexpr int kEmbeddingThreads = 256;
constexpr int kEmbeddingHits = 64;  // per warp, in the block's list of matches

// The gradient of an embedding table. Blocks have some rows of the table along x, and some columns along y.
struct EmbeddingGradArgs {
  const void* ids;   // [count]
  const void* grad;  // [count][columns]
  void* to;          // [rows][columns]
  int count, rows, columns;
  long long padding;  // this id has no gradient; -1: all have one
  bool by_frequency;  // divide a row's gradient by how often its id occurs
  bool adds;          // add to what the result has
  int rows_each, columns_each;
};

}  // namespace reformer
