#include "run.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "calls.h"
#include "convolution.h"
#include "hip.h"
#include "records.h"
#include "rules.h"

namespace stub {
namespace {

void* stream_of_all = nullptr;
thread_local std::optional<void*> stream_of_thread;
bool blas_fails_in_capture = false;

// MIOpen would run it, with an exception, wrong results or a crash.
const Solver& applicable(const Handle& handle, const Problem& problem, uint64_t id) {
  const Solver* const solver = registered(id);
  if (!solver) misuse("solver " + std::to_string(id) + " is not registered");
  if (!is_applicable(*solver, problem, handle.architecture))
    misuse(std::string(solver->name) + " (" + std::to_string(id) + ") is not applicable to " + problem.key() + " on " +
           handle.architecture);
  return *solver;
}

std::string preparation(const Problem& problem, uint64_t id) {
  return problem.key() + "=" + std::to_string(id) + (problem.is_deterministic ? ",deterministic," : ",") +
         std::to_string(problem.fp16_alternative);
}

struct Range {
  const char* what;
  const void* begin;
  int64_t bytes;
};

void expect_apart(const Range& a, const Range& b) {
  const auto from = reinterpret_cast<uintptr_t>(a.begin), other = reinterpret_cast<uintptr_t>(b.begin);
  if (from < other + b.bytes && other < from + a.bytes) misuse(std::string(a.what) + " overlaps " + b.what);
}

void check_memory(const Problem& problem, const Operands& operands, size_t asked) {
  const int64_t bytes = bytes_of(problem.type);
  if (!operands.first || !operands.second || !operands.result) misuse("a tensor at null");
  if (!operands.workspace != (operands.workspace_bytes == 0))
    misuse("a workspace at null has no bytes, others have some");
  if (operands.workspace_bytes < asked)
    misuse("a workspace of " + std::to_string(operands.workspace_bytes) + " bytes, where " + std::to_string(asked) +
           " were asked for");
  const Range first{"the first operand", operands.first, first_elements(problem) * bytes};
  const Range second{"the second operand", operands.second, second_elements(problem) * bytes};
  const Range result{"the result", operands.result, result_elements(problem) * bytes};
  expect_apart(result, first);
  expect_apart(result, second);
  if (!operands.workspace) return;
  const Range workspace{"the workspace", operands.workspace, static_cast<int64_t>(operands.workspace_bytes)};
  for (const Range& tensor : {first, second, result}) expect_apart(workspace, tensor);
}

// All of the workspace is written and, when the run ends, read: nobody else may use it meanwhile.
class Scratch {
 public:
  explicit Scratch(const Operands& operands)
      : begin_(static_cast<unsigned char*>(operands.workspace)), end_(begin_ + operands.workspace_bytes) {
    static std::atomic<unsigned char> runs{0};
    mark_ = ++runs % 255;  // not the 255 that a run leaves
    std::fill(begin_, end_, mark_);
  }

  void leave() const {
    if (std::any_of(begin_, end_, [this](unsigned char byte) { return byte != mark_; }))
      misuse("somebody wrote to the workspace while the solver ran");
    std::fill(begin_, end_, 0xff);
  }

 private:
  unsigned char *begin_, *end_, mark_;
};

}  // namespace

int compile(const Handle& handle, const Problem& problem, uint64_t id) {
  applicable(handle, problem, id);
  if (const int status = injected()) return status;
  if (hip::is_capturing(handle.stream)) return fail(kUnknownError, "nothing can be compiled in a capture");
  record_compilation(id);
  return kSuccess;
}

int run(Handle& handle, const Problem& problem, const Operands& operands, uint64_t id) {
  const Solver& solver = applicable(handle, problem, id);
  check_memory(problem, operands, workspace_bytes(solver, problem));
  if (handle.stream != stream_of_thread.value_or(stream_of_all)) misuse("a convolution on an unexpected stream");

  poison(problem, operands.result);
  hip::set_current_device(handle.device);
  if (const int status = injected()) return status;
  const std::string preparing = preparation(problem, id);
  if (hip::is_capturing(handle.stream)) {
    if (!handle.prepared.count(preparing)) return fail(kUnknownError, "a first run in a capture");
    if (solver.algorithm == kGemm && blas_fails_in_capture) return fail(kUnknownError, "BLAS allocates in a capture");
  }
  const Scratch scratch(operands);
  convolve(problem, operands.first, operands.second, operands.result);
  scratch.leave();
  handle.prepared.insert(preparing);
  record_run(id, problem.key(), handle.stream);
  return kSuccess;
}

void expect_stream(void* stream) { stream_of_all = stream; }
void expect_stream_of_thread(void* stream) { stream_of_thread = stream; }
void forget_expected_stream() {
  stream_of_all = nullptr;
  stream_of_thread.reset();
}

void fail_blas_in_capture(bool fails) { blas_fails_in_capture = fails; }

}  // namespace stub
