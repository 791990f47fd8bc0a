// Shared by the kernels of embeddings and their host.
#pragma once

namespace reformer {

constexpr int kEmbeddingThreads = 256;
constexpr int kEmbeddingHits = 64;  // of a warp, that a block lists

// The gradient of an embedding's table. A block has some rows of the table along x, and some of their columns along y.
struct EmbeddingGradArgs {
  const void* ids;   // [count]
  const void* grad;  // [count][columns]
  void* to;          // [rows][columns]
  int count, rows, columns;
  long long padding;  // this id has no gradient; -1 if all have one
  bool by_frequency;  // a row's gradient is divided by how often its id is there
  int rows_each, columns_each;
};

}  // namespace reformer
