// Shared by the files of the C API: strings and errors, owned by the calling thread, and devices from their text form.
#pragma once

#include <exception>
#include <string>

#include "c_api.h"
#include "device.h"
#include "dispatch/decide.h"
#include "plan/interned.h"

namespace reformer::c_api {

// Sets the message that reformer_error() returns.
void set_error(const char* message);

// Keeps the string until the thread's next call.
const char* keep(std::string value);

// Returns the body's result, or `failed`, with the error set, if it throws.
template <class Result, class Body>
Result guarded(Result failed, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    set_error(error.what());
    return failed;
  }
}

// The call of a program after the problem's convolution, without its tensors.
ProgramCall call_without_tensors(const Program& program, const ConvProblem& problem);

// The device of a text form, with PyTorch's current settings; this machine's CPU if text is null.
Device device_of(const char* text);

// Calls `body` with the program of this code as if it followed the problem's kernel, without its tensors; with null if
// there is no code.
template <class Body>
void with_program(const ConvProblem& problem, const int64_t* code, int64_t size, const Body& body) {
  if (!size) return body(nullptr);
  const auto program = interned_program(code, size);
  const ProgramCall call = call_without_tensors(program->whole, problem);
  body(&call);
}

// Index of the chosen solver among all solvers.
int32_t index_of(const Decision& choice);

}  // namespace reformer::c_api
