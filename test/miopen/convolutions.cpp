// The interface's functions of convolutions, five for each direction.
#include <algorithm>
#include <vector>

#include "api.h"
#include "calls.h"
#include "rules.h"
#include "run.h"

using namespace stub;

namespace {

// Descriptors in the interface's order; which are those of x, w and y is the direction's.
struct Descriptors {
  const void *handle, *first, *second, *convolution, *third;
};

Problem problem_of(Direction direction, const Descriptors& given) {
  const auto &first = find<Tensor>(given.first), &second = find<Tensor>(given.second),
             &third = find<Tensor>(given.third);
  const auto& convolution = find<Convolution>(given.convolution);
  switch (direction) {
    case Direction::forward: return problem_of(direction, second, first, convolution, third);
    case Direction::backward_data: return problem_of(direction, third, second, convolution, first);
    default: return problem_of(direction, second, third, convolution, first);
  }
}

// As few as the find-db and the heuristics give.
std::vector<Solution> solutions(const Handle& handle, const Problem& problem) {
  constexpr size_t kMost = 4;
  std::vector<Solution> found;
  for_each_registered([&](const Solver& solver) {
    if (found.size() < kMost && is_applicable(solver, problem, handle.architecture))
      found.push_back({0.1f * (found.size() + 1), workspace_bytes(solver, problem), solver.id, algorithm_of(solver)});
  });
  return found;
}

int solution_count(Direction direction, const Descriptors& given, size_t* count) {
  const Handle& handle = usable_handle(given.handle);
  const Problem problem = problem_of(direction, given);
  if (!count) misuse("null where the count belongs");
  if (const int status = injected()) return status;
  *count = solutions(handle, problem).size();
  return kSuccess;
}

int get_solutions(Direction direction, const Descriptors& given, size_t most, size_t* count, Solution* result) {
  const Handle& handle = usable_handle(given.handle);
  const Problem problem = problem_of(direction, given);
  if (!count || !result) misuse("null where the solutions belong");
  if (const int status = injected()) return status;
  const auto found = solutions(handle, problem);
  *count = std::min(most, found.size());
  std::copy(found.begin(), found.begin() + *count, result);
  return kSuccess;
}

int workspace_size(Direction direction, const Descriptors& given, uint64_t id, size_t* bytes) {
  const Handle& handle = usable_handle(given.handle);
  const Problem problem = problem_of(direction, given);
  if (!bytes) misuse("null where the size belongs");
  if (const int status = injected()) return status;
  const Solver* const solver = registered(id);
  if (!solver) return fail(kBadParameter, "invalid solution id " + std::to_string(id));
  if (solver->query == Query::checks && !is_applicable(*solver, problem, handle.architecture))
    return fail(kBadParameter, std::string(solver->name) + " is not applicable");
  *bytes = workspace_bytes(*solver, problem);
  return kSuccess;
}

int compile_solution(Direction direction, const Descriptors& given, uint64_t id) {
  const Handle& handle = usable_handle(given.handle);
  return compile(handle, problem_of(direction, given), id);
}

int immediate(Direction direction, const Descriptors& given, const Operands& operands, uint64_t id) {
  Handle& handle = usable_handle(given.handle);
  return run(handle, problem_of(direction, given), operands, id);
}

}  // namespace

// The five functions of a direction. A macro, since the names of the functions are made of the direction's.
#define STUB_DIRECTION(Name, direction)                                                                              \
  STUB_API int miopenConvolution##Name##GetSolutionCount(void* handle, void* first, void* second, void* convolution, \
                                                         void* third, size_t* count) {                               \
    enter("miopenConvolution" #Name "GetSolutionCount");                                                             \
    return solution_count(direction, {handle, first, second, convolution, third}, count);                            \
  }                                                                                                                  \
  STUB_API int miopenConvolution##Name##GetSolution(void* handle, void* first, void* second, void* convolution,      \
                                                    void* third, size_t most, size_t* count, Solution* result) {     \
    enter("miopenConvolution" #Name "GetSolution");                                                                  \
    return get_solutions(direction, {handle, first, second, convolution, third}, most, count, result);               \
  }                                                                                                                  \
  STUB_API int miopenConvolution##Name##GetSolutionWorkspaceSize(                                                    \
      void* handle, void* first, void* second, void* convolution, void* third, uint64_t id, size_t* bytes) {         \
    enter("miopenConvolution" #Name "GetSolutionWorkspaceSize");                                                     \
    return workspace_size(direction, {handle, first, second, convolution, third}, id, bytes);                        \
  }                                                                                                                  \
  STUB_API int miopenConvolution##Name##CompileSolution(void* handle, void* first, void* second, void* convolution,  \
                                                        void* third, uint64_t id) {                                  \
    enter("miopenConvolution" #Name "CompileSolution");                                                              \
    return compile_solution(direction, {handle, first, second, convolution, third}, id);                             \
  }                                                                                                                  \
  STUB_API int miopenConvolution##Name##Immediate(void* handle, void* first, const void* first_data, void* second,   \
                                                  const void* second_data, void* convolution, void* third,           \
                                                  void* result, void* workspace, size_t bytes, uint64_t id) {        \
    enter("miopenConvolution" #Name "Immediate");                                                                    \
    return immediate(direction, {handle, first, second, convolution, third},                                         \
                     {first_data, second_data, result, workspace, bytes}, id);                                       \
  }

STUB_DIRECTION(Forward, Direction::forward)
STUB_DIRECTION(BackwardData, Direction::backward_data)
STUB_DIRECTION(BackwardWeights, Direction::backward_weights)
