// Shared by the kernels that add up partial gradients of tables and the host.
#pragma once

namespace reformer {

constexpr int kAddTablesCells = 32, kAddTablesSlices = 32;  // of a block; it has a thread for each of both

// to[i] = parts[0][i] + parts[1][i] + ...
struct AddTablesArgs {
  const float* parts;  // [count][elements]
  void* to;            // [elements]
  int count, elements;
  bool adds;  // add to what the result has
};

}  // namespace reformer
