// MIOpen's solvers of convolutions: their numbers, names, algorithms and, in short, what they can do.
#pragma once

#include <cstdint>
#include <string>

#include "codes.h"

namespace stub {

// What the query of the workspace does.
enum class Query {
  checks,  // it refuses problems to which the solver isn't applicable
  zero,    // it answers 0 whatever the problem is
};

enum class Layouts { nchw, nhwc, both };

enum class Workspace {
  none,
  columns,       // im2col's matrix of one image
  transposed,    // packed copies of x and y
  wide_weights,  // weights in fp32, if theirs is another type
  spectra,       // transforms of x, w and y
};

enum class Registries { all, old, newest };

enum Needs : unsigned {
  kNothing = 0,
  kNoPad = 1,
  kOneGroup = 2,
  kNoDilation = 4,
  kMlir = 8,       // a build with MLIR
  kNotPlain = 16,  // not what a product of matrices computes without im2col
};

struct Solver {
  uint64_t id;
  const char* name;  // the find-db's
  Algorithm algorithm;
  Query query;
  const char* directions;  // of F, B and W
  const char* types;       // f fp32, h fp16, b bf16
  Layouts layouts;
  int filter_h, filter_w, stride;  // 0: any
  unsigned needs;
  const char* architectures;  // a prefix
  Workspace workspace;
  Registries registries;
};

// The solver that an id stands for in the registry in use; null if it has none.
const Solver* registered(uint64_t id);

// The solver of that name in the registry in use; null if there is none.
const Solver* registered(const std::string& name);

// Registered solvers in the order of their ids: calls visit(solver).
template <class Visit>
void for_each_registered(Visit visit) {
  constexpr uint64_t kIds = 300;
  for (uint64_t id = 1; id < kIds; ++id)
    if (const Solver* solver = registered(id)) visit(*solver);
}

// What the registry in use says: it may have changed the algorithm of one solver.
Algorithm algorithm_of(const Solver& solver);

// "old", of about 3.1, "newest", or "changed:16", the newest with another algorithm for solver 16.
void use_registry(const std::string& name);
bool is_newest_registry();

}  // namespace stub
