// MIOpen's solvers that a choice may name: which its library does not list, one line each in solver_table.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conv/problem.h"

namespace reformer::miopen {

// miopenConvAlgorithm_t.
enum class Algorithm : int32_t { gemm = 0, direct = 1, fft = 2, winograd = 3, implicit_gemm = 5 };

// Who says whether a solver applies. MIOpen's immediate functions run what they are given, applicable or not.
enum class Check : uint8_t {
  asked,      // MIOpen: its workspace query checks solvers that may need a workspace
  ruled,      // its rule alone: the query answers 0 for every problem, so the rule is exact or stricter
  unchecked,  // nobody: never offered
};

// The reason why it does not apply; null if nothing speaks against it. `arch` is the architecture without features.
using Rule = const char* (*)(const ConvProblem& problem, const std::string& arch);

constexpr uint8_t bit(Direction direction) { return uint8_t(1u << uint8_t(direction)); }
constexpr uint8_t bit(DType dtype) { return uint8_t(1u << uint8_t(dtype)); }
constexpr uint8_t bit(Layout layout) { return uint8_t(1u << uint8_t(layout)); }

struct MiopenSolver {
  const char* name;  // as in find-dbs and in the weights
  uint64_t id;       // the same in all releases that have the solver
  Algorithm algorithm;
  Check check;
  uint8_t directions, dtypes, layouts;  // sets of bit()
  const char* archs;                    // beginnings of the architectures' names, with a space between; empty: all
  // True if it gives the same bits again where MIOpen's attribute of that name is set.
  bool deterministic;
  Rule rule;  // of rules.h; null if there is none beyond the sets
};

const std::vector<MiopenSolver>& solver_table();

}  // namespace reformer::miopen
