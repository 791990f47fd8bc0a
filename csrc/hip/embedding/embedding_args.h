// Shared by the embedding kernels and the host.
#pragma once

#include "../device/divide.h"

namespace reformer {

constexpr int kEmbeddingThreads = 384;
constexpr int kEmbeddingBlocks = 2;   // of a multiprocessor at once, at least
constexpr int kEmbeddingChunks = 2;   // accesses of a warp to a row, at most: those of a block's columns
constexpr int kEmbeddingRows = 1024;  // of a block, at most

// The gradient of an embedding table, or of several of equal sizes, one after another, each with its part of the ids,
// which number the rows of all of them. Blocks have every groups-th row of a table along x, and some columns along y.
struct EmbeddingGradArgs {
  const void* ids;   // [tables][count]
  const void* grad;  // [tables][count][columns]
  void* to;          // [tables][rows][columns]
  int count, rows, columns;
  long long padding;  // this id has no gradient; -1: all have one
  bool by_frequency;  // divide a row's gradient by how often its id occurs
  bool adds;          // add to what the result has
  bool is_large;      // the result does not fit into a second-level cache, which is left to the gradients
  int columns_each;
  int groups;  // blocks along x, of a table
  Divider by_groups;
};

}  // namespace reformer
