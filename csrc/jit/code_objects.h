// Compiled kernels packaged by setup.py: <package>/kernels/<stem>.<architecture>.cubin or .co. A kernel file
// (Entry::file) is named with its folder, its code object without it: stems are unique.
#pragma once

#include <string>
#include <vector>

namespace reformer::gpu {

// <package>/kernels beside this library, or the folder that a test set before anything was read from it.
const std::string& kernels_folder();
void set_kernels_folder(const std::string& folder);

// The architectures whose code objects a GPU can run, best first. AMD GPUs run only their own. NVIDIA GPUs of compute
// capability 9.0 prefer sm_90a, which has instructions that no later GPU has. All NVIDIA GPUs run code compiled for the
// same major and a lesser or equal minor version.
std::vector<std::string> runnable_architectures(const std::string& architecture);

// The code object of a kernel file for a GPU; null if none is packaged. Read once, never freed.
const std::string* packaged_code(const std::string& file, const std::string& architecture);

// True if any code object is packaged for this GPU.
bool has_packaged_code(const std::string& architecture);

}  // namespace reformer::gpu
