// A call of the library: it is counted, named in what is said of it, and answered with the status that a test injected.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace stub {

// Whatever the library remembers is read and written under this lock; convolutions run outside of it.
extern std::mutex state;

// Ends the process: MIOpen itself would crash here, or silently compute something else.
[[noreturn]] void misuse(const std::string& sentence);

// Says on stderr, as MIOpen does at any log level, why a call fails; the status.
int fail(int status, const std::string& sentence);

// The first line of every function of the interface. In a library built with -DSTUB_DECOY it ends the process.
void enter(const char* function);

// The status that a test wants of the call, said to have failed; 0 if none.
int injected();

// How often a function was called, by all threads or by the caller's own.
int64_t calls(const std::string& function);
int64_t calls_of_thread(const std::string& function);
int64_t failures();

void inject(const std::string& function, int status, int count);
void reset_calls();

// Another number for each thread, also for those that begin after another's end.
uint64_t this_thread();
bool has_ended(uint64_t thread);

}  // namespace stub
