// Shared by the files of the C API: strings and errors, which belong to the calling thread, and devices by their text.
#pragma once

#include <exception>
#include <string>

#include "c_api.h"
#include "device.h"
#include "dispatch/decide.h"

namespace reformer::c_api {

// Makes a text what reformer_error() gives.
void set_error(const char* message);

// The text, until the thread's next call.
const char* keep(std::string value);

// The body's result; `failed`, with the error set, if it throws.
template <class Result, class Body>
Result guarded(Result failed, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    set_error(error.what());
    return failed;
  }
}

// A device by its text form, with PyTorch's settings of now; this machine's CPU if that is null.
Device device_of(const char* text);

// The chosen solver's index among all.
int32_t index_of(const Decision& choice);

}  // namespace reformer::c_api
