#include "code_objects.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

namespace reformer::gpu {
namespace {

namespace fs = std::filesystem;

bool is_amd(const std::string& architecture) { return architecture.rfind("gfx", 0) == 0; }

std::string suffix(const std::string& architecture) {
  return "." + architecture + (is_amd(architecture) ? ".co" : ".cubin");
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string& folder() {
  static std::string path = [] {
    Dl_info here{};
    dladdr(reinterpret_cast<const void*>(&kernels_folder), &here);
    return (fs::absolute(here.dli_fname ? here.dli_fname : "").parent_path() / "kernels").string();
  }();
  return path;
}

}  // namespace

const std::string& kernels_folder() { return folder(); }

void set_kernels_folder(const std::string& path) { folder() = path; }

std::vector<std::string> runnable_architectures(const std::string& architecture) {
  if (is_amd(architecture)) return {architecture};
  std::vector<std::string> found = {architecture + "a"};
  const std::string major = architecture.substr(0, architecture.size() - 1);
  for (char minor = architecture.back(); minor >= '0'; --minor) found.push_back(major + minor);
  return found;
}

const std::string* packaged_code(const std::string& file, const std::string& architecture) {
  static std::mutex mutex;
  static std::map<std::string, std::string> read;  // a map, whose elements keep their addresses
  const std::lock_guard<std::mutex> lock(mutex);
  const std::string stem = fs::path(file).filename().string();
  for (const std::string& runnable : runnable_architectures(architecture)) {
    const std::string path = kernels_folder() + "/" + stem + suffix(runnable);
    if (const auto known = read.find(path); known != read.end()) return &known->second;
    if (std::ifstream stream(path, std::ios::binary); stream)
      return &read.emplace(path, std::string(std::istreambuf_iterator<char>(stream), {})).first->second;
  }
  return nullptr;
}

bool has_packaged_code(const std::string& architecture) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(kernels_folder(), none))
    for (const std::string& runnable : runnable_architectures(architecture))
      if (ends_with(entry.path().filename().string(), suffix(runnable))) return true;
  return false;
}

}  // namespace reformer::gpu
