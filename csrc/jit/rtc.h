// Compilers at run time: NVRTC, which torch for CUDA brings along, and hipRTC of ROCm. Found by dlopen.
#pragma once

#include <string>
#include <vector>

namespace reformer::gpu {

// A file with NVRTC, for where neither torch nor the loader has it: a wheel's. Before the compiler is first asked for.
void set_nvrtc_file(const char* path);

// Null if there is a compiler for kernels of this architecture; else the rest of a message: "NVRTC ... is not found".
const char* no_compiler(const std::string& architecture);

// The compiler as a process of its own can use it: NVRTC and hipRTC have the same functions under two prefixes.
struct Compiler {
  std::string library;  // a path
  std::string prefix;   // of the functions' names: nvrtc
  std::string code;     // what they call a code object: CUBIN
  std::vector<std::string> options;
};
Compiler compiler_for(const std::string& architecture);

// All that decides what compile() makes of a source, as text: the compiler, its version and the options.
std::string compiler_and_options(const std::string& architecture);

// A source without includes -> a code object that the driver loads. hipRTC ends the process if it doesn't know the
// architecture: ask only for those of devices. Throws std::runtime_error with the compiler's log.
std::string compile(const std::string& source, const std::string& name, const std::string& architecture);

}  // namespace reformer::gpu
