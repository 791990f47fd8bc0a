// Run-time compilers: NVRTC, which comes with torch for CUDA, and hipRTC of ROCm. Found by dlopen.
#pragma once

#include <string>
#include <vector>

namespace reformer::gpu {

// Sets a file of NVRTC, a wheel's, for the case that neither torch nor the loader has it. To be called before the first
// use of the compiler.
void set_nvrtc_file(const char* path);

// Null if there is a compiler for kernels of this architecture; else the end of a message: "NVRTC ... is not found".
const char* no_compiler(const std::string& architecture);

// The compiler's description for another process: NVRTC and hipRTC have the same functions under two prefixes.
struct Compiler {
  std::string library;  // path
  std::string prefix;   // prefix of its functions: nvrtc
  std::string code;     // its word for code objects: CUBIN
  std::vector<std::string> options;
};
Compiler compiler_for(const std::string& architecture);

// Everything besides the source that determines the result of compile(), as text: compiler, version and options.
std::string compiler_and_options(const std::string& architecture);

// Compiles a source without includes to a code object that the driver can load. hipRTC aborts the process for unknown
// architectures, so pass only those of devices. Throws std::runtime_error with the compiler's log.
std::string compile(const std::string& source, const std::string& name, const std::string& architecture);

}  // namespace reformer::gpu
