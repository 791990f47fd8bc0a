// Shared by the embedding kernels and the host.
#pragma once

namespace reformer {

constexpr int kEmbeddingThreads = 256;
constexpr int kEmbeddingHits = 64;  // per warp, in the block's list of matches

// The gradient of an embedding table, or of several of equal sizes, one after another, each with its part of the ids,
// which number the rows of all of them. Blocks have some rows of a table along x, and some columns along y.
struct EmbeddingGradArgs {
  const void* ids;   // [tables][count]
  const void* grad;  // [tables][count][columns]
  void* to;          // [tables][rows][columns]
  int count, rows, columns;
  long long padding;  // this id has no gradient; -1: all have one
  bool by_frequency;  // divide a row's gradient by how often its id occurs
  bool adds;          // add to what the result has
  int rows_each, columns_each;
  int blocks_each;  // along x, of a table
};

}  // namespace reformer
