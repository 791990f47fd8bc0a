#include "conditions.h"

#include "rules.h"

namespace reformer::miopen {
namespace {

bool starts_with_one_of(const std::string& text, const char* beginnings) {
  if (!*beginnings) return true;
  for (const char* begin = beginnings;;) {
    const char* end = begin;
    while (*end && *end != ' ') ++end;
    if (text.compare(0, size_t(end - begin), begin, size_t(end - begin)) == 0) return true;
    if (!*end) return false;
    begin = end + 1;
  }
}

}  // namespace

const char* unsupported(const MiopenSolver& solver, const ConvProblem& problem, const std::string& arch,
                        bool deterministic) {
  if (solver.check == Check::unchecked) return "MIOpen does not tell whether this solver applies";
  if (!(solver.directions & bit(problem.direction))) return "it does not compute this direction";
  if (!(solver.dtypes & bit(problem.dtype))) return "it does not support this data type";
  if (!(solver.layouts & bit(problem.layout))) return "it does not support this layout";
  const std::string name = arch.substr(0, arch.find(':'));
  if (!starts_with_one_of(name, solver.archs)) return "it does not run on this architecture";
  const bool no_xnack = solver.algorithm == Algorithm::winograd || solver.rule == gtc_nchw;
  if (no_xnack && arch.find("xnack+") != std::string::npos)
    return "it does not run where the GPU may retry memory accesses (xnack)";
  if (deterministic && !solver.deterministic) return "it adds in no fixed order, and the result must be deterministic";
  return solver.rule ? solver.rule(problem, name) : nullptr;
}

}  // namespace reformer::miopen
