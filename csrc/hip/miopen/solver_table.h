// MIOpen's solvers that a choice may name. MIOpen's library does not list them; solver_table.cpp has one line for each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conv/problem.h"

namespace reformer::miopen {

// Values of miopenConvAlgorithm_t.
enum class Algorithm : int32_t { gemm = 0, direct = 1, fft = 2, winograd = 3, implicit_gemm = 5 };

// How it is decided whether a solver applies. MIOpen's immediate functions run any solver, applicable or not.
enum class Check : uint8_t {
  asked,      // by MIOpen: its workspace query checks solvers that may need a workspace
  ruled,      // by the rule alone: the query returns 0 for every problem, so the rule is exact or stricter
  unchecked,  // not at all: never offered
};

// Returns the reason why the solver does not apply, or null. `arch` is the architecture without features.
using Rule = const char* (*)(const ConvProblem& problem, const std::string& arch);

constexpr uint8_t bit(Direction direction) { return uint8_t(1u << uint8_t(direction)); }
constexpr uint8_t bit(DType dtype) { return uint8_t(1u << uint8_t(dtype)); }
constexpr uint8_t bit(Layout layout) { return uint8_t(1u << uint8_t(layout)); }

struct MiopenSolver {
  const char* name;  // as in find-dbs and in the weights
  uint64_t id;       // equal in all releases that have the solver
  Algorithm algorithm;
  Check check;
  uint8_t directions, dtypes, layouts;  // sets of bit()
  const char* archs;                    // prefixes of the architectures' names, separated by spaces; empty: all
  // True if results repeat bit for bit when MIOpen's attribute of that name is set.
  bool deterministic;
  Rule rule;  // from rules.h; null if the sets above are the only conditions
};

const std::vector<MiopenSolver>& solver_table();

}  // namespace reformer::miopen
