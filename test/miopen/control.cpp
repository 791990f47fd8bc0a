// What tests set and read: a second interface, of names that MIOpen doesn't have.
#include "api.h"
#include "calls.h"
#include "objects.h"
#include "records.h"
#include "rules.h"
#include "run.h"
#include "solvers.h"

using namespace stub;

// Forgets what tests have set and counted. Objects stay, and what handles have prepared.
STUB_API void stub_reset() {
  reset_calls();
  reset_records();
  set_applicable("");
  set_mlir(false);
  use_registry("newest");
  forget_expected_stream();
  fail_blas_in_capture(false);
}

STUB_API void stub_inject(const char* function, int status, int count) { inject(function, status, count); }
STUB_API void stub_use_registry(const char* name) { use_registry(name); }
STUB_API void stub_set_applicable(const char* find_db) { set_applicable(find_db); }
STUB_API void stub_set_mlir(int is_built_in) { set_mlir(is_built_in); }
STUB_API void stub_expect_stream(void* stream) { expect_stream(stream); }
STUB_API void stub_expect_stream_of_thread(void* stream) { expect_stream_of_thread(stream); }
STUB_API void stub_fail_blas_in_capture(int fails) { fail_blas_in_capture(fails); }

STUB_API int64_t stub_calls(const char* function) { return calls(function); }
STUB_API int64_t stub_calls_of_thread(const char* function) { return calls_of_thread(function); }
STUB_API int64_t stub_failures() { return failures(); }
STUB_API int64_t stub_compilations(uint64_t id) { return compilations(id); }
STUB_API int64_t stub_runs(uint64_t id) { return runs(id); }
STUB_API void* stub_last_stream() { return last_stream(); }
STUB_API int64_t stub_live_handles() { return live(Kind::handle); }
STUB_API int64_t stub_live_tensors() { return live(Kind::tensor); }
STUB_API int64_t stub_live_convolutions() { return live(Kind::convolution); }

// KEY=ID of the last convolution, valid until this thread asks again.
STUB_API const char* stub_last_run() {
  thread_local std::string text;
  text = last_run();
  return text.c_str();
}
