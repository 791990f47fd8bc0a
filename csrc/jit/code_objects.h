// Compiled kernels that came with the package: <package>/kernels/<stem>.<architecture>.cubin or .co, made by setup.py.
// A kernel file (Entry::file) is named with its folder, its code object without: no two files have one stem.
#pragma once

#include <string>
#include <vector>

namespace reformer::gpu {

// <package>/kernels, beside this library; or what a test has set before anything was read from it.
const std::string& kernels_folder();
void set_kernels_folder(const std::string& folder);

// The architectures whose code objects a GPU can run, the best first. AMD's run their own only. NVIDIA's of compute
// capability 9.0 prefer sm_90a, which has instructions that no later GPU has; and all run what was compiled for
// the same major and a lesser minor version.
std::vector<std::string> runnable_architectures(const std::string& architecture);

// The code object of a kernel file for a GPU; null if none was packaged. It is read once and never freed.
const std::string* packaged_code(const std::string& file, const std::string& architecture);

// True if there is any for this GPU.
bool has_packaged_code(const std::string& architecture);

}  // namespace reformer::gpu
